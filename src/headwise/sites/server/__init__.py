"""The server's side of a federation of sites: an executor whose clients are elsewhere, and the run it belongs to.

Imports `transport`, `secagg` and `facts`; nothing of `site` but the digests of states.
"""
