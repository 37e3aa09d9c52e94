"""A user's own network: finding its head, and describing it so that another process can rebuild it.

Imports the errors, disk and the models' own split.
"""
