"""The site side: its `site.toml`, policy, ledger and clients' states, and its answers to orders.

Imports `transport`, `secagg`, `facts` and `states`; nothing from `server`.
"""
