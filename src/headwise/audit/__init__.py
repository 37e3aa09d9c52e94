"""Privacy audit: what a run's clients send, and how much attacks recover from it.

Imports `app`, to run a round again, and everything below it.
"""
