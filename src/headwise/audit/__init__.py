"""What leaks: what a run's clients send, and how much attacks make of it."""
