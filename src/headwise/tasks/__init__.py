"""What a task means: its loss, its predictions, and what a model without any input would say.

A file per task; `registry` makes the objective of a run. Imports errors, and no other room.
"""
