"""From raw columns to what a network takes: fitted from sums that clients can add up, kept as JSON, applied anywhere.

Imports numpy and errors only, never torch: predictions elsewhere use it, too.
"""
