"""Executors: where the clients of a run live. `base` has their contract, `settings.executors` their names.

Imports the client's side of the engine and its plan; what is made from settings comes in a `Setup`.
"""
