"""Masked sums: the server learns the sum of the sites' messages, but no single message.

Read `protocol` and `stages` first, then `masking`, a site's part in a round, and `opening`, the server's.
Imports `transport`, `states` and the engine; neither `server` nor `site`.
"""
