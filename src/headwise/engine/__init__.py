"""The engine: one round loop, one worker, and executors between them."""
