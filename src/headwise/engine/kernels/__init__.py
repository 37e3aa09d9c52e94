"""Kernels: how a client's descent is computed, and what they share; `choosing.choose` gives the fastest that fits.

Imports `memory`, models and the engine's clock; no bench, plan, method or executor.
"""
