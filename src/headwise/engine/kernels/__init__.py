"""Kernels train a client's model: `training.choose` takes the native one where it fits, else autograd.

Imports `memory`, models, tasks and the settings of training; never a bench, plan, method or executor.
"""
