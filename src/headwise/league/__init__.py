"""The league: every method on small federations that differ in kind.

A folder per version holds a file per federation; a published version does not change. Imports the app, the report and
the statistics.
"""
