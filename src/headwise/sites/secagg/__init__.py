"""Masked sums: the server learns the sum of the sites' messages, but no single message."""
