"""Preprocessing: fitted from sums that clients can add up, saved as JSON, applied anywhere.

Imports settings and the readers of `data.own`; never torch, so that a deployed model can do without it.
"""
