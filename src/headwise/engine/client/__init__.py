"""What happens at a client: its bench, jobs, predictions and scores, and the state that stays there.

Imports the contract and the engine's plan, kernels and host; knows no executor and no driver.
"""
