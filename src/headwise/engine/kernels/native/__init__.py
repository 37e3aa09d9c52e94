"""Kernels of our own, in C: plain SGD and predictions of chains, with the same bits on every CPU.

`library` finds, builds and checks them, `program` describes a network to them, `kernel` is what the engine chooses.
"""
