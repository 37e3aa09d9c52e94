"""Data: a source yields arrays, a partition yields indices, `FederatedData` yields clients.

Imports models (for what a network must know of the data), memory and settings; no engine and no method.
"""
