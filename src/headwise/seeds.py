"""Seeds by name: the same parts give the same seed, in any process and on any machine."""

from __future__ import annotations

import hashlib
import json

_text = json.JSONEncoder(allow_nan=False).encode


def seed_of(*parts: int | float | str) -> int:
    """A 63-bit seed for this purpose.

    >>> seed_of(0, "sample", 3) == seed_of(0, "sample", 3) != seed_of(0, "sample", 4)
    True
    """
    return int.from_bytes(hashlib.sha256(_text(parts).encode()).digest()[:8], "big") >> 1
