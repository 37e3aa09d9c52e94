"""Tasks: what a network's outputs mean, how wrong they are, and what they are called. A file per task.

`registry` lists them. Reading a run needs their words, so a task imports torch only where it computes. Imports errors.
"""
