"""Partitions: which client gets which samples. One scheme per file: (labels, clients, rng) -> indices.

Imports settings only.
"""
