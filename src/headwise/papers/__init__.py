"""The published tables of five papers as data, and the code that turns each into runs and verdicts.

Imports the app and the report, and everything below them.
"""
