"""What happens at a client: its bench, its jobs, its scores, and the state that stays there.

Imports the contract and the engine's plan, kernels and host; knows no executor and no driver.
"""
