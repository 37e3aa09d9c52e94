"""Methods: one file each, which reads like its paper and is found by its name.

Imports the contract, models and records, and no other method: mathematics only.
"""
