"""What a run found out about each client: its last scores, and what guessing would give it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import RunError
from ..runs.query import Run
from .results import Line, Setting, reading

Accuracies = dict[int, float]
"""by client"""


def accuracies(line: Line) -> dict[str, Accuracies]:
    """For each moment, every client's last accuracy on its test samples, its mean over the seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in line.runs:
        with reading(run):
            for moment, by_client in _last_scores(run).items():
                for c, value in by_client.items():
                    found.setdefault(moment, {}).setdefault(c, []).append(value)
    return {m: {c: fmean(v) for c, v in sorted(by_client.items())} for m, by_client in found.items()}


def floors(setting: Setting) -> list[float | None]:
    """Each client's accuracy when its most frequent training class is always guessed; none without test samples."""
    train, test = setting.partition["train"], setting.partition["test"]
    return [have[own.index(max(own))] / sum(have) if sum(have) else None for own, have in zip(train, test, strict=True)]


def _last_scores(run: Run) -> dict[str, Accuracies]:
    """Each client's last scores; read from the end, because only the last lines matter and there may be millions."""
    clients, last = run.manifest["experiment"]["clients"], _last_round(run)
    found: dict[str, Accuracies] = {"pre": {}, "post": {}, "global": {}}
    for row in _backwards(run.path / "clients.jsonl"):
        if row["round"] < last and all(len(seen) in (0, clients) for seen in found.values()):
            break
        for moment, seen in found.items():
            if (row.get(moment) or {}).get("test") and row["client"] not in seen:
                seen[row["client"]] = row[moment]["test"]["accuracy"]
    found["stale"] = {**found["pre"], **found.pop("post")}
    return {m: seen for m, seen in found.items() if seen}


def _last_round(run: Run) -> int:
    """The last round in which everybody was measured."""
    return max((row["round"] for row in run.rounds if "bytes_evaluation" in row), default=0)


def _backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file, the last one first."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number in range(len(lines), 0, -1):
        try:
            yield json.loads(lines[number - 1])
        except ValueError as error:
            raise RunError(f"{path} is damaged at line {number}: it is no valid JSON.") from error
