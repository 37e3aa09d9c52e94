"""Networks: one file per family; `split` decides what is body and what is head.

Imports params, memory and settings; knows nothing of methods, data or clients.
"""
