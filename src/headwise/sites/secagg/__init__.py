"""Masked sums: the server learns what the sites' messages add up to, and no single one.

Imports `transport` for its messages and the engine for records; neither the server's side nor the site's.
"""
