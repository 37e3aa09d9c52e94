"""What leaks: what a run's clients send, and how much attacks make of it.

Imports the app, to run a round again, and everything below it.
"""
