"""The engine: the round loop (`driver`), a client's work (`client`), `executors` in between, `kernels` that train.

Imports the contract, data, models, the log's schema and settings; no method, run folder, site or command line.
"""
