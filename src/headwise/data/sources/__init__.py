"""Sources: one file per data set, which finds or downloads it, checks its hash and decodes it.

Imports the readers of `data` and settings.
"""
