"""What a method shows of what it learned, as `runs.diagnostics` stored it."""

from __future__ import annotations

from typing import Any

from ..disk.jsontext import to_json
from ..runs.query import Run

ROOM = 300_000
"""at most this many characters for one quantity on the page"""
FEWEST, MOST = 3, 60
"""rounds of a quantity on the page, regardless of size"""


def diagnostics(run: Run, room: int = ROOM) -> dict[str, Any]:
    """Each quantity's axes, and its values by round; empty if the method shows none."""
    rows = run.diagnostics
    found: dict[str, Any] = {}
    for row in thinned(rows, _rounds(rows[-1], min(room, ROOM))) if rows else ():
        for name, quantity in row["quantities"].items():
            entry = found.setdefault(name, {"axes": quantity["axes"], "rounds": []})
            entry["rounds"].append({"round": row["round"], "ids": quantity["ids"], "values": quantity["values"]})
    return found


def _rounds(row: dict[str, Any], room: int) -> int:
    """How many rounds fit, if each is as large as this one."""
    largest = max((len(to_json(q)) for q in row["quantities"].values()), default=1)
    return max(FEWEST, min(MOST, room // largest))


def thinned(values: list[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
