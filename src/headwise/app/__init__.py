"""What Python and the command line both call: find by name, prepare, launch, compare.

`tests/house/test_house_imports.py` lists the rooms it may import; `exports`, `sites` and `cli` are not among them.
"""
