"""Each client's last accuracy, and what guessing would score."""

from __future__ import annotations

from statistics import fmean

from .results import Line, Setting, reading

Accuracies = dict[int, float]
"""by client"""


def accuracies(line: Line) -> dict[str, Accuracies]:
    """Each client's last accuracy on its test samples by moment, averaged over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in line.runs:
        with reading(run):
            for moment, by_client in run.last_scores().items():
                for c, value in by_client.items():
                    found.setdefault(moment, {}).setdefault(c, []).append(value)
    return {m: {c: fmean(v) for c, v in sorted(by_client.items())} for m, by_client in found.items()}


def floors(setting: Setting) -> list[float | None]:
    """Each client's accuracy if it always guesses its most frequent training class; None without test samples."""
    train, test = setting.partition["train"], setting.partition["test"]
    return [have[own.index(max(own))] / sum(have) if sum(have) else None for own, have in zip(train, test, strict=True)]
