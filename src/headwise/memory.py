"""Whether there is memory for what a user's numbers come to, before it is asked for."""

from __future__ import annotations

import os

from .errors import ConfigError


def check_memory(needed: int, what: str) -> None:
    """Refuse what this machine could never hold: asking for it can take the machine down, not only this process."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = f"about {needed / 2**30:,.0f} GB, but this machine has {there / 2**30:,.0f} GB"
        raise ConfigError(f"{what} needs {sizes}: choose something smaller.")
