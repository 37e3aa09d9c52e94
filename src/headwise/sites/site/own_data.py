"""A site's own data, and the facts about them that it shares with the server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...app import registry
from ...data.dataset import Dataset, Source
from ...data.federated import Clients, FederatedData
from ...data.files import forbid_downloads
from ...data.own.description import PARTS
from ...data.preprocessing import measure, sums_for, sums_to_json
from ...data.sources.own import Own
from ...data.splits import divide_own, hold_out, parse_split, redraw
from ...engine.mechanism import Mechanism
from ...errors import DataError
from ...seeds import seed_of
from ...settings.choices import OWN
from ...settings.experiment import Experiment
from ...settings.options import TargetRange
from ...tasks.registry import kind_of
from ..facts import CLASSES, STATISTICS, ClientFacts
from .site_file import SiteSettings

ALIKE = ("classes", "mean", "std", "vocabulary", "task", "target_range", "recipe", "split")
"""what all clients of a site have in common"""


def own_data(
    site: SiteSettings, home: Path, experiment: Experiment, *, download: bool = False, alone: bool = False
) -> FederatedData:
    """The data of this site's clients, from the sources in site.toml; other clients are empty.

    If `alone`, there is no study: the site's own range of targets counts.
    """
    datasets = _load_datasets(site, home, experiment, download)
    first = next(iter(datasets.values()))
    target_range = first.target_range if alone else experiment.target_range
    _check_study(site, first, experiment, target_range)
    _check_alike(site, list(datasets.values()))
    tests = [d.official_test for d in datasets.values() if d.official_test is not None]
    merged = dataclasses.replace(
        first,
        x=np.concatenate([d.x for d in datasets.values()]),
        y=np.concatenate([d.y for d in datasets.values()]),
        official_test=np.concatenate(tests) if len(tests) == len(datasets) else None,
        part=None if first.part is None else np.concatenate([d.part for d in datasets.values() if d.part is not None]),
        weight=_merge_weights(list(datasets.values())),
        owner=None,
    ).with_range(target_range)
    sizes = {c: len(d.y) for c, d in datasets.items()}
    test_draw = experiment.data_seed if experiment.evaluate.test_draw is None else experiment.evaluate.test_draw
    seed = seed_of(test_draw, "partition")
    parts = divide_own(merged, sizes, parse_split(experiment.split), experiment.clients or 0, seed)
    if test_draw != experiment.data_seed:
        parts = redraw(merged, parts, seed_of(experiment.data_seed, "partition"))
    parts = hold_out(parts, experiment.evaluate.validation, seed_of(experiment.data_seed, "validation"))
    statistics = str(experiment.data.options.get(STATISTICS, ""))
    sums = sums_for(merged.recipe, statistics) if statistics and merged.recipe is not None else None
    return FederatedData(merged, parts, sums=sums)


def _merge_weights(datasets: Sequence[Dataset]) -> NDArray[np.float32] | None:
    """The weights of all samples; samples of a client without weights count the same."""
    if all(d.weight is None for d in datasets):
        return None
    return np.concatenate([np.ones(len(d.y), np.float32) if d.weight is None else d.weight for d in datasets])


def _load_datasets(site: SiteSettings, home: Path, experiment: Experiment, download: bool) -> dict[int, Dataset]:
    """Each client's data set, in the order of their numbers."""
    datasets: dict[int, Dataset] = {}
    with nullcontext() if download else forbid_downloads():
        for own in sorted(site.clients, key=lambda each: each.id):
            source: Source = registry.make("data", own.source)
            if isinstance(source, Own):
                source = dataclasses.replace(source, task=source.task or experiment.task)
            dataset = source.load(home / own.folder)
            if (n := len(dataset.owners)) > 1 and dataset.recipe is not None:
                names = ", ".join(dataset.owners[:5])
                raise DataError(f"{own.source} has {n} clients ({names}), but must have one: this site's own.")
            datasets[own.id] = dataset
    return datasets


def _check_study(
    site: SiteSettings, dataset: Dataset, experiment: Experiment, target_range: TargetRange | None
) -> None:
    """Refuse data of another task, range or classes than the study's."""
    if experiment.task not in (None, dataset.task):
        raise DataError(f"task is {experiment.task!r}, but {site.name} has data for {dataset.task}.")
    if (declared := dataset.target_range) not in (None, target_range):
        study = target_range.to_plain() if target_range else "none"
        raise DataError(
            f"{site.name} declares target_range = {declared.to_plain()}, but the experiment has {study}: "
            "both must be the same."
        )
    classes = tuple(experiment.data.options.get(CLASSES, ())) if experiment.data.name == OWN else ()
    if classes and dataset.classes != classes:  # the server need not know which this site has
        raise DataError(
            f"data.classes is {', '.join(classes)}, but {site.name} has others: "
            "names and order in its data.toml must be the same."
        )


def _check_alike(site: SiteSettings, datasets: list[Dataset]) -> None:
    kinds = [[d.x.shape[1:], d.x.dtype, d.part is None, *(getattr(d, k) for k in ALIKE)] for d in datasets]
    if any(kind != kinds[0] for kind in kinds):
        raise DataError(f"the clients of {site.name} have data of different shape, type, classes or scale.")


def sums_of(data: FederatedData, site: SiteSettings) -> dict[int, str]:
    """Sums of each client's training samples, and of quantities without a range; empty without preprocessing to fit."""
    dataset = data.dataset
    if dataset.recipe is None:
        return {}
    y = dataset.y if kind_of(dataset.task).quantitative and dataset.target_range is None else None
    sums: dict[int, str] = {}
    for own in site.clients:
        train = data.parts[own.id].train
        measured = measure(dataset.recipe, dataset.x[train], None if y is None else y[train])
        sums[own.id] = sums_to_json(dataset.recipe, measured)
    return sums


def check_scale(site: SiteSettings, data: FederatedData, experiment: Experiment) -> None:
    """Refuse a regression whose scale only this site's own targets could define; privacy has its own message."""
    dataset = data.dataset
    if not kind_of(dataset.task).quantitative or dataset.target_range or experiment.privacy.clip is not None:
        return
    has_recipe = dataset.recipe is not None
    if not (has_recipe and site.allow.sums):
        how = "set target_range in the experiment" + (", or allow.sums = true in each site.toml" if has_recipe else "")
        raise DataError(
            f"{site.name} has data for regression, which needs a scale of the targets that is the same for all "
            f"sites: {how}."
        )


def report_facts(
    site: SiteSettings, data: Clients, privacy: Mechanism, sums: Mapping[int, str] | None = None
) -> list[ClientFacts]:
    """What this site shares about its clients; under client-level privacy, not even their sizes."""
    task = data.task
    facts: list[ClientFacts] = []
    for own in site.clients:
        sizes = (0, 0, 0) if privacy.hides_sizes else data.sizes(own.id)
        labels = None
        if site.allow.labels and not privacy.protects and kind_of(task).one_class:
            parts = [getattr(data.client(own.id), part).y for part in PARTS]
            labels = tuple(tuple(y.bincount(minlength=task.classes).tolist()) for y in parts)
        form = (task.shape, task.classes, task.vocabulary)
        facts.append(ClientFacts(own.id, *form, sizes, labels, (sums or {}).get(own.id, ""), task.kind))
    return facts
