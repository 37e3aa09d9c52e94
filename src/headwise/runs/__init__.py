"""Runs on disk: one folder each, crash-safe to write, readable without torch.

Imports `log`, `disk` and the engine's events, which `store` observes.
"""
