"""What the command line and Python both call: prepare an experiment, launch it, compare methods.

The top floor: it may import any room except `cli` and `testing`.
"""
