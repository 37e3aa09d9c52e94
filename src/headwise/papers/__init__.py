"""The published tables of five papers as data, and what turns each of them into runs and verdicts.

Imports the app and the report, and everything below them.
"""
