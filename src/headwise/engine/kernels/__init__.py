"""Kernels train a client's model: `training.choose` takes the native one where it fits, else autograd.

Imports `memory`, models, tasks and the engine's clock; never a bench, plan, method or executor.
"""
