"""Messages between the server and the sites, and Flower, which carries them.

Only `grid`, what a node needs (`node`, `greeting`, `direct`) and `secagg.primitives` import flwr.
"""
