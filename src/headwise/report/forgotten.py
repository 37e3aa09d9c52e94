"""What it changes for the other clients that one was forgotten."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ..disk.files import write_bytes
from ..runs.query import Run
from .page import render_table
from .tables import Table

MOMENTS = {"pre": "after a download", "stale": "after its last training"}


def forgotten_table(before: Run, after: Run) -> Table:
    """Each other client's last accuracy in both runs and the difference, in per cent; their mean comes last."""
    then, now = before.last_scores(), after.last_scores()
    moments = [m for m in MOMENTS if m in then and m in now]
    head = ["client", "test samples"]
    head += [f"{MOMENTS[m]}, {what}" for m in moments for what in ("with", "without", "change")]
    others = sorted({c for m in moments for c in now[m]})
    sizes = [sum(row) for row in after.partition["test"]]
    rows = [
        [_called(after, c), str(sizes[c]), *(cell for m in moments for cell in _cells(then[m].get(c), now[m].get(c)))]
        for c in others
    ]
    means = [_cells(*(fmean(s[m][c] for c in others if c in s[m]) for s in (then, now))) for m in moments if others]
    return head, [*rows, ["mean", str(sum(sizes[c] for c in others)), *(cell for cells in means for cell in cells)]]


def write_forgotten(before: Run, after: Run, out: Path) -> Path:
    head, rows = forgotten_table(before, after)
    gone = ", ".join(after.manifest["experiment"]["without"])
    same = "the others keep their numbers, samples and random draws"
    said = f"The run {before.path.name} as if {gone} had never been there: {same}. Accuracy on own test samples, in %."
    text = render_table(f"{before.method} without {gone}", said, head, rows)
    write_bytes(out, text.encode())
    return out


def _called(run: Run, c: int) -> str:
    return f"{c} ({run.names[c]})" if run.names else str(c)


def _cells(then: float | None, now: float | None) -> list[str]:
    if then is None or now is None:
        return ["" if v is None else f"{100 * v:.2f}" for v in (then, now)] + [""]
    return [f"{100 * then:.2f}", f"{100 * now:.2f}", f"{100 * (now - then):+.2f}"]
