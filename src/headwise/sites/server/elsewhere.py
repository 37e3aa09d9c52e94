"""The server's stand-in for data that never leave their sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ...app.floors import floors_of
from ...app.prepare import Prepared, plan_for
from ...data.federated import Clients, clients_at_sites, task_at_sites
from ...data.splits import Floor, Spread, Summary, majority_floor
from ...disk.files import digest
from ...disk.jsontext import to_json
from ...runs.query import site_names
from ...settings.experiment import Experiment
from ..facts import PARTS, STATISTICS, ClientFacts, for_sites
from .nodes import Roster


class Elsewhere:
    """What the sites have told about their clients' data."""

    def __init__(self, told: Mapping[int, ClientFacts], experiment: Experiment, names: tuple[str, ...] = ()) -> None:
        self._told, self._count, self._names = told, experiment.clients or 0, names
        statistics = experiment.data.options.get(STATISTICS, "")
        self.task = task_at_sites(next(iter(told.values())).task, statistics, experiment.target_range)

    @property
    def clients(self) -> Clients:
        """Clients without samples, and with classes only where sites share them."""
        known = {c: t.labels[0] for c, t in self._told.items() if t.labels is not None}
        labels = {c: tuple(k for k, n in enumerate(counts) if n) for c, counts in known.items()}
        sizes = [self._told[c].sizes if c in self._told else (0, 0, 0) for c in range(self._count)]
        return clients_at_sites(self.task, sizes, labels, self._names)

    @cached_property
    def summary(self) -> Summary:
        """The hash covers only the number of clients and the task, since sites may join later."""
        train, val, test = (sum(t.sizes[k] for t in self._told.values()) for k in range(3))
        sizes = [sum(t.sizes) for t in self._told.values()]
        counts = {part: np.array(rows, np.int64) for part, rows in self.histograms().items()}
        known = len(counts["train"]) > 0
        classes = (sum(counts.values()) > 0).sum(1).tolist() if known else [self.task.classes]  # pyright: ignore
        floor = majority_floor(counts["train"], counts["test"]) if known else Floor(None, None)
        task = self.task
        form = digest(to_json([self._count, task.shape, task.classes, task.vocabulary, task.kind]).encode())
        return Summary(self._count, train, val, test, _spread(sizes), _spread(classes), floor, form)

    def histograms(self) -> dict[str, list[list[int]]]:
        """Samples per class for each client; empty unless every site shares them."""
        rows = [self._told[c].labels for c in range(self._count) if c in self._told]
        known = [r for r in rows if r is not None]
        if len(known) < self._count:
            return {part: [] for part in PARTS}
        return {part: [list(r[k]) for r in known] for k, part in enumerate(PARTS)}


def _spread(values: list[int]) -> Spread:
    return Spread(float(min(values)), float(np.median(values)), float(max(values)))


def prepared_from(experiment: Experiment, known: Roster) -> Prepared:
    asked = for_sites(experiment)
    names = site_names(known.homes, known.names, asked.clients or 0)
    data = Elsewhere(known.told, asked, names)
    asked = dataclasses.replace(asked, task=data.task.kind)
    plan, counts = plan_for(asked, data.clients), data.histograms()
    named = {"names": list(names)} if names else {}
    return Prepared(asked, plan, data.summary, {**counts, **named, **floors_of(plan, counts)})
