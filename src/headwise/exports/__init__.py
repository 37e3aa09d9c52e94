"""Models out of runs: ready to use here, or as folders that load elsewhere; what they predict, and how good they are.

Loading and predicting need numpy, `data` and `disk`; only what makes a model imports torch and `app`.
"""
