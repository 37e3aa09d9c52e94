"""The server side of a federation of sites: an executor for remote clients, and the run that uses it.

Imports `transport`, `secagg`, `facts` and `states`; nothing from `site`.
"""
