"""What a person may say: typed fields, the tables of settings, the `Experiment` tree, and what can be named in it.

Imports errors only, never torch: the command line starts here.
"""
