"""docs/metrics.md lists the metrics that there are, as the registry has them."""

from __future__ import annotations

import re

from rooms import ROOT

from headwise.log.metrics import OURS, TASKS, Metric, mean, root_mean_square, weighted

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
OVER = {weighted: "all samples alike", mean: "all clients alike", root_mean_square: "all samples alike, as squares"}


def row(m: Metric) -> str:
    measured = "yes" if m.default else "no"
    return f"| `{m.name}` | {m.label} | {', '.join(m.tasks)} | {m.better} | {OVER[m.aggregate]} | {measured} |"


def test_the_table_is_the_registry() -> None:
    own = [m for m in OURS if m.source == m.name]
    assert re.findall(r"^\| `.*$", PAGE, re.MULTILINE) == [row(m) for m in own]
    assert len(own) > 10


def test_tasks_are_listed_in_one_order() -> None:
    assert all(list(m.tasks) == [t for t in TASKS if t in m.tasks] for m in OURS)
    assert {TASKS[t].default_metric for t in TASKS} <= {m.name for m in OURS}
