"""The process that it all runs in: devices, threads, clocks, deadlines, Ctrl-C.

Imports nothing else of the engine.
"""
