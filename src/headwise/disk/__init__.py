"""Files: checking paths that users name, JSON, atomic writes, appending lines, locks.

Imports only `errors`; knows nothing about runs.
"""
