"""A page about one model: its metrics, each class, label or quantity, and how sure or how wrong it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...report.page import render_judged

SIDE, MARGIN = 360, 50
"""of the pictures, in pixels"""


def page_of(
    *, title: str, task: str, said: str, figures: Sequence[tuple[str, str]], classes: Sequence[str], judged: Any
) -> str:
    """`judged` is as `judging.Judged`."""
    return render_judged(
        title=title,
        said=said,
        figures=figures,
        classes=classes,
        judged=judged,
        counted={"classification": "samples", "segmentation": "pixels", "multilabel": "labels"}.get(task, ""),
        head=list(judged.each[0]),
        rows=[[_cell(value, task) for value in row.values()] for row in judged.each],
        pictures=[_picture(each) for each in judged.residuals],
    )


def _cell(value: Any, task: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if task == "regression" else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else value


def _picture(found: Any) -> dict[str, Any]:
    """Pixels of a quantity's two drawings: predicted over true values, and how frequent errors are."""
    values = [v for point in found.points for v in point] or [0.0]
    low, wide = min(values), (max(values) - min(values)) or 1.0
    most = max(found.counts) or 1
    bars = [(MARGIN + k * SIDE / len(found.counts), SIDE * n / most, n) for k, n in enumerate(found.counts)]
    return {
        "name": found.name,
        "points": [(MARGIN + SIDE * (t - low) / wide, 30 + SIDE - SIDE * (s - low) / wide) for t, s in found.points],
        "values": [(SIDE * k / 4, f"{low + wide * k / 4:.4g}") for k in range(5)],
        "bars": bars,
        "width": SIDE / len(found.counts),
        "errors": [(SIDE * k / 4, f"{e:.3g}") for k, e in enumerate(_quarters(found.edges))],
    }


def _quarters(edges: Sequence[float]) -> list[float]:
    return [edges[0] + (edges[-1] - edges[0]) * k / 4 for k in range(5)]
