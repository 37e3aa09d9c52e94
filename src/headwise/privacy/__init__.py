"""Differential privacy: the mechanisms, their table, and what they share (accountant, rehearsal, randomness).

To add a mechanism, write a file with a subclass of `engine.mechanism.Mechanism`, a row in `mechanisms.py`, and a test.
Imports the engine and everything below it; the engine never imports this room: a plan carries its mechanism.
"""
