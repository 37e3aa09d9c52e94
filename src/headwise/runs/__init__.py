"""Runs on disk: one folder each, crash-safe to write, readable without torch.

Imports `log`, `disk` and the engine's events, which `store` observes.
"""

from collections.abc import Callable
from typing import Any

open_models: Callable[[Any], Any]
"""gives a run its models; `exports` registers it, because reading a run must not import the training code"""
continue_run: Callable[..., Any]
"""continues a run, in its folder or a new one; also registered"""
