"""Runs on disk: a folder each, written safely, read without torch."""
