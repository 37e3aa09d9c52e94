"""Runs as something to look at: one self-contained page, tables and figures.

Imports runs, log and settings, never torch.
"""
