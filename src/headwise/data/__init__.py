"""Data: a source yields arrays, a partition yields indices, `FederatedData` yields clients.

Imports models (for `Task`, what a network must know about the data), memory and settings; never an engine or a method.
"""
