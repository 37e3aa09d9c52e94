"""Partitions: who gets which samples. One scheme per file, each a value: (labels, clients, rng) -> indices.

Imports settings only.
"""
