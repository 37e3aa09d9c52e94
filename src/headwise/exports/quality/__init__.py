"""How good models are: what they should say, the run's metrics, and what lies behind these.

Imports data, log, report, and engine for the metrics; `expected` needs numpy alone.
"""
