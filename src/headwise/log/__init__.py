"""What a run logs about each round: the schema of its lines and the registry of metrics.

Everything that reads or writes runs imports this, so it imports only errors and tasks, and torch only to compute.
"""
