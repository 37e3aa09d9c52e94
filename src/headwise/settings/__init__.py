"""What you can configure, as data: typed fields, the tables and the `Experiment` tree, and the names they accept.

Imports `errors` only and never torch, because the command line starts here; imports nothing by name.
"""
