"""Readers of a user's files (CSV, JSONL, Parquet, NPZ, images) into raw columns and arrays.

Imports errors, the description and findings; does not interpret targets or split clients.
"""
