"""Differential privacy: one file per mechanism, their table, and what they share (accountant, rehearsal, randomness).

The engine does not import this room: a plan carries its mechanism, which `engine/mechanism.py` describes. This room may
import the engine, the settings and everything below them; `plans`, `launch`, `flower` and `cli` import it.
A new mechanism is a file with a subclass of `Mechanism`, a row in `mechanisms.py`, and a test.
"""
