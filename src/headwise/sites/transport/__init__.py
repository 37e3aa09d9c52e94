"""How messages get to sites and back: their form, and Flower, which carries them.

With `secagg.primitives`, `grid` is the only file that imports flwr.
"""
