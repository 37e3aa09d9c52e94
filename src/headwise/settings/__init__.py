"""What you can configure: typed fields, tables of settings, the `Experiment` tree, and the names it accepts.

Imports `errors` only and never torch, because the command line starts here.
"""
