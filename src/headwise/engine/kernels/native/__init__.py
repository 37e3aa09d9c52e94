"""Kernels in C: plain SGD and predictions for chains of layers, with the same bits on every CPU.

`build` compiles them, `library` finds them, `checking` compares them with torch, `program` describes a network to them,
and `kernel` is what the engine uses.
"""
