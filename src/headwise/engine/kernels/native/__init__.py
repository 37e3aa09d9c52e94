"""Kernels in C: SGD and predictions for chains of layers, with the same bits on every CPU.

`build` compiles them, `library` finds them, `layers` is the table of layers, and `chain` runs a chain of them.
"""
