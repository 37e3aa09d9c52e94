"""What a run found out about each client: its last scores, and what guessing would give it."""

from __future__ import annotations

from statistics import fmean

from .results import Line, Setting, reading

Accuracies = dict[int, float]
"""by client"""


def accuracies(line: Line) -> dict[str, Accuracies]:
    """For each moment, every client's last accuracy on its test samples, its mean over the seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in line.runs:
        with reading(run):
            for moment, by_client in run.last_scores().items():
                for c, value in by_client.items():
                    found.setdefault(moment, {}).setdefault(c, []).append(value)
    return {m: {c: fmean(v) for c, v in sorted(by_client.items())} for m, by_client in found.items()}


def floors(setting: Setting) -> list[float | None]:
    """Each client's accuracy when its most frequent training class is always guessed; none without test samples."""
    train, test = setting.partition["train"], setting.partition["test"]
    return [have[own.index(max(own))] / sum(have) if sum(have) else None for own, have in zip(train, test, strict=True)]
