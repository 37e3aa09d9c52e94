"""Presents a partition before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..log.metrics import ACCURACY, percent
from .data import metric_data, parts_with_samples
from .page import render_page
from .tables import Table

Histograms = dict[str, list[list[int]]]
"""each client's sample counts by class, for each part"""

PARTS = {"summary": "Summary", "partition": "Who holds what"}


def partition_words(summary: dict[str, Any]) -> list[str]:
    """How much data there is, how uneven it is, and what guessing would score."""
    sizes, classes, floor = summary["sizes"], summary["classes"], summary["floor"]["weighted"]
    who = f"{summary['clients']} clients share" if summary["clients"] > 1 else "One client has"
    sentences = [
        f"{who} {summary['train']:,} training, {summary['val']:,} validation and {summary['test']:,} test samples.",
        f"A client has {sizes['median']:g} samples (median), from {sizes['min']:g} to {sizes['max']:g}, of "
        f"{classes['median']:g} classes, from {classes['min']:g} to {classes['max']:g}.",
    ]
    if floor is not None:
        sentences.append(
            f"Always guessing a client's most frequent class is right for {percent(floor)} of the test samples: "
            f"a model must beat that."
        )
    return [*sentences, f"The partition's fingerprint is {summary['hash'][:12]}."]


def partition_table(counts: Histograms, classes: list[str], names: Sequence[str] = ()) -> Table:
    """A row per client: its number, its name if it has one, and its samples, those for training by class."""
    parts = parts_with_samples(counts)
    head = ["client", *(["name"] if names else []), *parts, *classes]
    rows = [
        [
            str(c),
            *names[c : c + 1],
            *(str(sum(part[c])) for part in parts.values()),
            *(str(n) if n else "·" for n in train),
        ]
        for c, train in enumerate(counts["train"])
    ]
    return head, rows


def render_partition(
    title: str, summary: dict[str, Any], counts: Histograms, classes: list[str], names: Sequence[str] = ()
) -> str:
    data = {
        "title": title,
        "metric": metric_data(ACCURACY),
        "lines": [],
        "order": [],
        "classes": classes,
        "names": list(names) or None,
        "floor": None,
        "floors": [],
        "partition": parts_with_samples(counts),
    }
    setting = {"title": title, "words": partition_words(summary), "rows": [], "joined": None, "lines": []}
    return render_page(title=title, subtitle="nothing trained yet", parts=PARTS, settings=[setting], data=[data])
