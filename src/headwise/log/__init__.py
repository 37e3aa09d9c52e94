"""What a run writes down about each round: the schema of its lines, and the registry of metrics.

Everybody who writes or reads runs imports this room, so it imports nothing but the standard library and `errors`.
"""
