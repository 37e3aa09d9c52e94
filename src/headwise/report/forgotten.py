"""What it changes for the other clients that one was forgotten."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ..disk.files import write_bytes
from ..log.metrics import Metric, percent
from ..runs.query import Run, client_label
from .data import in_table
from .page import capital, render_table
from .tables import Table

MOMENTS = {"pre": "after a download", "stale": "after its last training"}


def forgotten_table(before: Run, after: Run) -> Table:
    """The run's metric of each other client in both runs, and the difference; their mean comes last."""
    metric = after.metric
    then, now = before.last_scores(), after.last_scores()
    moments = [m for m in MOMENTS if m in then and m in now]
    head = ["client", "test samples"]
    head += [f"{MOMENTS[m]}, {what}" for m in moments for what in ("with", "without", "change")]
    others = sorted({c for m in moments for c in now[m]})
    sizes = [sum(row) for row in after.partition["test"]]
    rows: list[list[str]] = []
    for c in others:
        cells = [cell for m in moments for cell in _cells(then[m].get(c), now[m].get(c), metric)]
        rows.append([client_label(c, after.names), str(sizes[c]), *cells])
    means = [_cells(_mean(then[m], others), _mean(now[m], others), metric) for m in moments if others]
    return head, [*rows, ["mean", str(sum(sizes[c] for c in others)), *(cell for cells in means for cell in cells)]]


def write_forgotten(before: Run, after: Run, out: Path) -> Path:
    head, rows = forgotten_table(before, after)
    gone = ", ".join(after.manifest["experiment"]["without"])
    same = "the others keep their numbers, samples and random draws"
    metric = f"{capital(after.metric.heading)} on own test samples{', in %' * (after.metric.form is percent)}"
    intro = f"The run {before.path.name} as if {gone} had never been there: {same}. {metric}."
    text = render_table(f"{before.method} without {gone}", intro, head, rows)
    write_bytes(out, text.encode())
    return out


def _mean(scores: dict[int, float], clients: list[int]) -> float:
    return fmean(scores[c] for c in clients if c in scores)


def _cells(then: float | None, now: float | None, metric: Metric) -> list[str]:
    cells = ["" if v is None else in_table(v, metric) for v in (then, now)]
    return [*cells, "" if then is None or now is None else in_table(now - then, metric, "+")]
