"""Executors: where the clients of a run live. `base` has their contract, `registry` finds them by name.

They may import the engine and what it may import; what is made from settings comes to them in a `Setup`.
"""
