"""Kernels in C: SGD and predictions for chains of layers, with the same bits on every CPU.

`library` compiles and finds them, `layers` is the table of layers, `chain` trains a chain of them, and `autograd` runs
them under any loss.
"""
