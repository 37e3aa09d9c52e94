"""What a method's author writes against: the method, its two benches, averaging, and the formulas on its card.

Imports only models, records and field types; knows nothing of the engine, settings files or where clients live.
"""
