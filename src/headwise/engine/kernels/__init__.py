"""Kernels train a client's model by SGD; `choosing.choose` returns the fastest one that fits.

Imports `memory`, models and the engine's clock; never a bench, plan, method or executor.
"""
