"""Files of a user's own data, read into raw columns and arrays: CSV, JSONL, Parquet, NPZ, images.

Imports errors and the description; knows nothing of tasks or clients' splits.
"""
