"""Messages between the server and the sites, and Flower, which carries them.

Only `grid` and `secagg.primitives` import flwr.
"""
