"""A site's own data, and what the site tells the server about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from ...app import registry
from ...data.dataset import Dataset, Source
from ...data.federated import Clients, FederatedData
from ...data.files import offline
from ...data.preprocessing import measure, sums_for, sums_to_json
from ...data.sources.own import Own
from ...data.splits import divide_own, hold_out, parse_split
from ...engine.mechanism import Mechanism
from ...errors import DataError
from ...seeds import seed_of
from ...settings.choices import OWN, Choice
from ...settings.experiment import Experiment
from ..facts import CLASSES, PARTS, STATISTICS, ClientFacts
from .site_file import SiteSettings

ALIKE = ("classes", "mean", "std", "vocabulary", "task", "target_range", "recipe", "split")
"""what all clients of a site have in common"""


def own_data(
    site: SiteSettings, home: Path, experiment: Experiment, *, download: bool = False, alone: bool = False
) -> FederatedData:
    """The data of this site's clients, from the sources in site.toml; other clients are empty.

    Where the site is looked at `alone`, no study asks for a range of its targets, and its own one counts.
    """
    found: dict[int, Dataset] = {}
    with nullcontext() if download else offline():
        for own in sorted(site.clients, key=lambda each: each.id):
            source: Source = registry.make("data", Choice.parse(own.source, "data"))
            if isinstance(source, Own):
                source = dataclasses.replace(source, task=source.task or experiment.task)
            found[own.id] = _of_one(source.load(home / own.folder), own.source)
    first, *others = found.values()
    if experiment.task not in (None, first.task):
        raise DataError(f"task is {experiment.task!r}, but {site.name} has data for {first.task}.")
    declared = first.target_range
    asked = declared if alone else experiment.target_range
    if declared not in (None, asked):
        said = f"{site.name} declares target_range = {declared.plain()}"
        raise DataError(f"{said}, but the experiment {asked.plain() if asked else 'does not'}: both must be the same.")
    named = tuple(experiment.data.options.get(CLASSES, ())) if experiment.data.name == OWN else ()
    if named and first.classes != named:
        said = f"data.classes is {', '.join(named)}, but {site.name} has others"  # which, the server need not know
        raise DataError(f"{said}: names and order in its data.toml must be the same.")
    for other in others:
        kinds = [(d.x.shape[1:], d.x.dtype, d.part is None, *(getattr(d, k) for k in ALIKE)) for d in (first, other)]
        if kinds[0] != kinds[1]:
            raise DataError(f"the clients of {site.name} have data of different shape, type, classes or scale.")
    tests = [d.official_test for d in found.values() if d.official_test is not None]
    merged = dataclasses.replace(
        first,
        x=np.concatenate([d.x for d in found.values()]),
        y=np.concatenate([d.y for d in found.values()]),
        official_test=np.concatenate(tests) if len(tests) == len(found) else None,
        part=None if first.part is None else np.concatenate([d.part for d in found.values() if d.part is not None]),
        owner=None,
    ).with_range(asked)
    sizes = {c: len(d.y) for c, d in found.items()}
    seed = seed_of(experiment.data_seed, "partition")
    parts = divide_own(merged, sizes, parse_split(experiment.split), experiment.clients or 0, seed)
    parts = hold_out(parts, experiment.evaluate.validation, seed_of(experiment.data_seed, "validation"))
    statistics = str(experiment.data.options.get(STATISTICS, ""))
    sums = sums_for(merged.recipe, statistics) if statistics and merged.recipe is not None else None
    return FederatedData(merged, parts, sums=sums)


def _of_one(dataset: Dataset, source: str) -> Dataset:
    """The data set, if all of it belongs to one client."""
    if len(dataset.owners) > 1 and dataset.recipe is not None:
        names = ", ".join(dataset.owners[:5])
        raise DataError(f"{source} has {len(dataset.owners)} clients ({names}), but must have one: this site's own.")
    return dataset


def sums_of(data: FederatedData, site: SiteSettings) -> dict[int, str]:
    """Sums of each client's training samples, and of quantities without a range; empty without preprocessing to fit."""
    dataset, recipe = data.dataset, data.dataset.recipe
    if recipe is None:
        return {}
    trains = {c.id: data.parts[c.id].train for c in site.clients}
    y = dataset.y if dataset.task == "regression" and dataset.target_range is None else None
    sums = {c: measure(recipe, dataset.x[t], None if y is None else y[t]) for c, t in trains.items()}
    return {c: sums_to_json(recipe, each) for c, each in sums.items()}


def check_scale(site: SiteSettings, data: FederatedData, experiment: Experiment) -> None:
    """Refuse a regression whose targets could only be measured by this site's own; privacy has its own sentence."""
    dataset, tells = data.dataset, data.dataset.recipe is not None
    if dataset.task != "regression" or dataset.target_range or experiment.privacy.clip is not None:
        return
    if not (tells and site.allow.sums):
        how = "set target_range in the experiment" + (", or allow.sums = true in each site.toml" if tells else "")
        said = "needs a scale of the targets that is the same for all sites"
        raise DataError(f"{site.name} has data for regression, which {said}: {how}.")


def tell(
    site: SiteSettings, data: Clients, privacy: Mechanism, sums: Mapping[int, str] | None = None
) -> list[ClientFacts]:
    """What this site shares about its clients; under client-level privacy, not even their sizes."""
    task = data.task
    found: list[ClientFacts] = []
    for own in site.clients:
        sizes = (0, 0, 0) if privacy.hides_sizes else data.sizes(own.id)
        told = None
        if site.allow.labels and not privacy.protects and task.kind == "classification":
            parts = [getattr(data.client(own.id), part).y for part in PARTS]
            told = tuple(tuple(y.bincount(minlength=task.classes).tolist()) for y in parts)
        form = (task.shape, task.classes, task.vocabulary)
        found.append(ClientFacts(own.id, *form, sizes, told, (sums or {}).get(own.id, ""), task.kind))
    return found
