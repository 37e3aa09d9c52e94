"""Presents runs: a self-contained HTML page, tables and figures.

Imports `runs`, `log` and `settings`, never torch.
"""
