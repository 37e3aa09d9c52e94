"""Each client's last score."""

from __future__ import annotations

from statistics import fmean

from .results import Line, reading

Scores = dict[int, float]
"""by client"""


def client_scores(line: Line) -> dict[str, Scores]:
    """Each client's last score on its test samples by moment, averaged over seeds; without those not measured."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in line.runs:
        with reading(run):
            for moment, by_client in run.last_scores().items():
                for c, value in by_client.items():
                    found.setdefault(moment, {}).setdefault(c, []).append(value)
    return {m: {c: fmean(v) for c, v in sorted(by_client.items())} for m, by_client in found.items()}
