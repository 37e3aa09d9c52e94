"""Executors: where a run's clients live. `base` has the contract, `app.registry` the names.

Imports the client's side of the engine and its plan; whatever is built from settings arrives in a `Setup`.
"""
