"""Whether Flower is installed, asked before anything that needs it is imported."""

from __future__ import annotations

import importlib.util

from ..errors import ConfigError

NEEDED = ("flwr", "cryptography")


def check_flower() -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"{missing[0]} is not installed, which servers and sites need: run pip install 'headwise[flower]'."
        )
