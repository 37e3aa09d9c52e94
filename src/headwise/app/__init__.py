"""What Python and the command line both call: find by name, prepare, launch, compare.

It may import the rooms that stand above it in `tests/house/test_house_imports.py`; not `exports`, `sites` or `cli`.
"""
