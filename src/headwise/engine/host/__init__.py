"""The host process: devices, threads, clocks, deadlines, Ctrl-C.

Imports nothing else of the engine.
"""
