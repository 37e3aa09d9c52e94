"""Executors: where the clients of a run live."""
