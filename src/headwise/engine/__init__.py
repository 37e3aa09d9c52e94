"""The engine: the round loop (`driver`), what happens at a `client`, `executors` between them, `kernels` that train.

Imports the contract, data, models, the log's schema and settings; no method, run folder, site or command line.
"""
