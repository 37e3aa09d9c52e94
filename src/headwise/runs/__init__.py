"""Runs on disk: a folder each, written safely, read without torch.

Imports the log's schema, `disk`, and the engine's events, which `store` observes.
"""
