"""Methods: one file each, found by its name and written to be read beside its paper.

Imports the contract, models and records, and no other method: mathematics only.
"""
