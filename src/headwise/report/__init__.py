"""Runs as something to look at: one self-contained page, tables and figures; never torch."""
