"""Files: paths that users name, JSON, whole files written safely, and files that grow line by line.

Imports errors only; knows nothing of runs.
"""
