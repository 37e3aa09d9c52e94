"""What the workers of test_crew.py do; without torch, so that they start at once."""

from __future__ import annotations

import os
from typing import Any

from headwise.errors import ConfigError


def reading(number: int) -> Any:
    """Tasks are names of environment variables."""
    return os.environ.get


def failing(number: int) -> Any:
    raise ConfigError(f"worker {number} can't begin.")
