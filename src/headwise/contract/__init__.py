"""What a method's author writes against: the method, its two benches, averaging, and what a card's formulas mean.

Imports models and records only; knows nothing of the engine, of settings files or of where clients live.
"""
