"""What a method tells about its inside, as `runs.diagnostics` stored it."""

from __future__ import annotations

from typing import Any

from ..runs.query import Run

ROUNDS = 25
"""so many rounds of each quantity are on the page"""


def diagnostics(run: Run) -> dict[str, Any]:
    """Each named quantity over rounds: its axes, and its values round by round; empty where a method names none."""
    rows = run.diagnostics
    if len(rows) > ROUNDS:
        rows = [rows[round(i * (len(rows) - 1) / (ROUNDS - 1))] for i in range(ROUNDS)]
    found: dict[str, Any] = {}
    for row in rows:
        for name, quantity in row["quantities"].items():
            entry = found.setdefault(name, {"axes": quantity["axes"], "rounds": []})
            entry["rounds"].append({"round": row["round"], "ids": quantity["ids"], "values": quantity["values"]})
    return found
