"""Networks: each family is one file; `split` decides once what is body and what is head.

Imports params, memory and settings; knows nothing of methods, data or clients.
"""
