"""Headwise: personalized federated learning, one good model per client."""

__version__ = "0.1.0"
