"""Randomness by name: the same parts give the same seed, in any process, on any machine, in any order."""

from __future__ import annotations

import hashlib
import json


def seed_of(*parts: int | float | str) -> int:
    """A 63-bit seed for this purpose.

    >>> seed_of(0, "sample", 3) == seed_of(0, "sample", 3) != seed_of(0, "sample", 4)
    True
    """
    text = json.dumps(parts, allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
