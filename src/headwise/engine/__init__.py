"""The engine: one round loop (`driver`), one worker at each client, `executors` between them, `kernels` that train.

It may import the contract of methods, data and networks; no method, run folder, site or command line.
"""
