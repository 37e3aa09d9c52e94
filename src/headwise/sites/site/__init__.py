"""A site's own side: its `site.toml`, its policy, its ledger, its clients' states, and its answers to orders.

Imports `transport`, `secagg` and `facts`; nothing of `server`.
"""
