"""What the audit found about the methods it was run on: `benchmarks/audit.py` writes it, on public data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..disk.files import read_json

SHIPPED = Path(__file__).parent / "known.json"


@dataclass(frozen=True)
class KnownAttack:
    """The strongest attack of its kind."""

    attack: str
    knowing: str
    measure: str
    guess: float
    """what somebody reaches who has seen no message"""
    found: float
    epsilon: float | None
    """how strongly what was attacked was protected; None: not at all"""


@cache
def audited() -> dict[str, Any]:
    return read_json(SHIPPED)


def strongest(method: str, epsilon: float | None) -> tuple[KnownAttack, ...]:
    """Of each kind of attack, the one that gains most over guessing, at no stronger protection than `epsilon`."""
    known = audited()[method]
    weaker = {e: k for k, e in enumerate(known["epsilon"]) if e is not None and epsilon is not None and e >= epsilon}
    column = weaker[min(weaker)] if weaker else known["epsilon"].index(None)
    best: dict[str, KnownAttack] = {}
    for row in known["attacks"]:
        if (found := row["found"][column]) is None:
            continue
        now = KnownAttack(row["attack"], row["knowing"], row["measure"], row["guess"], found, known["epsilon"][column])
        kind = now.attack.split(",")[0]
        if kind not in best or now.found - now.guess > best[kind].found - best[kind].guess:
            best[kind] = now
    return tuple(best.values())
