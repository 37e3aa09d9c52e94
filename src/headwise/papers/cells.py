"""From a table to experiments: one cell per method, column and seed, known by the hash of its experiment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..disk.files import digest
from ..disk.jsontext import to_json
from ..errors import ConfigError, nearest
from ..settings.experiment import Choice, Experiment, experiment_from, find_class
from ..settings.fields import changed, field_types
from ..settings.options import Workers
from .schema import NONE, RATIOS, UNIT, Changes, Column, Metric, Moment, Paper, Recipe, Scale, Table
from .tables import choose, find, merged

Rules = Literal["paper", "code"]
STANDALONE = Recipe("Standalone", "standalone", moment="stale")
RUN = ("accuracy", "rounds", *RATIOS)
"""the measures that need training"""


@dataclass(frozen=True)
class Ask:
    """Which part of a table to reproduce, and how."""

    paper: Paper
    table: Table
    columns: tuple[Column, ...]
    methods: tuple[str, ...]
    scale: Scale
    rules: Rules = "paper"
    seeds: int = 1
    settings: Changes = NONE
    """the user's, applied after all others"""
    set_by_hand: tuple[str, ...] = ()
    """the same as typed, sweeps included"""

    @property
    def name(self) -> str:
        """The table's name as you type it: `fedgmh/2`."""
        return f"{self.paper.name.lower()}/{self.table.name}"

    @property
    def scaled(self) -> bool:
        """Whether the scale is not the paper's own."""
        return self.scale != self.paper.scales[0]

    @property
    def folder(self) -> str:
        """The name of the results folder, different for each variant."""
        variant = [self.scale.name] * self.scaled + ["code"] * (self.rules == "code")
        variant += [re.sub(r"[^\w.=,]+", "_", text) for text in self.set_by_hand]
        return "-".join([self.name.replace("/", "-"), *variant])

    def moment(self, recipe: Recipe, column: Column) -> Moment:
        """When models are measured: as set by the column, else the code, the method or the paper."""
        code = self.paper.code.moment if self.rules == "code" and self.paper.code else None
        return column.moment or (None if recipe is STANDALONE else code) or recipe.moment or self.paper.moment

    @property
    def metric(self) -> Metric:
        """How clients' accuracies are combined."""
        code = self.paper.code.metric if self.rules == "code" and self.paper.code else None
        return code or self.paper.metric

    @property
    def window(self) -> int | None:
        """How many of the last rounds count; None: all rounds."""
        return self.paper.code.window if self.rules == "code" and self.paper.code else None


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    method: str
    """as the table prints it"""
    column: str
    experiment: Experiment

    @property
    def key(self) -> str:
        """Identifies the experiment: the same on every machine, and in later versions that add settings."""
        values = {k: v for k, v in changed(self.experiment.plain(), Experiment().plain()).items() if k != "engine"}
        return digest(to_json(values, sort_keys=True).encode())[:16]

    @property
    def folder(self) -> str:
        e = self.experiment
        return f"{e.method.name}-{e.data.name}-s{e.seed}-{self.key}"


def ask_for(
    name: str,
    *,
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    scale: str | None = None,
    rules: str = "paper",
    seeds: int = 1,
) -> Ask:
    """Check every name; without columns or methods, all of them are taken."""
    paper, table = find(name)
    if rules not in ("paper", "code"):
        raise ConfigError(f"rules is {rules!r}: {nearest(rules, ('paper', 'code'))}")
    if rules == "code" and paper.code is None:
        raise ConfigError(f"rules is 'code', but there is no public code of {paper.name}: allowed is paper.")
    scales = {s.name: s for s in paper.scales}
    scale = scale or paper.scales[0].name
    if scale not in scales:
        raise ConfigError(f"scale is {scale!r}, which {paper.name} does not have: {nearest(scale, scales)}")
    names = [c.name for c in table.columns]
    chosen = choose(columns, names, "columns") if columns else names
    known = list(dict.fromkeys((*table.methods, *(r.name for r in paper.methods), STANDALONE.name)))
    wanted = choose(methods, known, "methods") if methods else table.methods
    found = tuple(c for c in table.columns if c.name in chosen)
    return Ask(paper, table, found, tuple(wanted), scales[scale], "code" if rules == "code" else "paper", seeds)


def recipe_of(ask: Ask, method: str) -> Recipe:
    """How this method is run; Standalone needs no recipe in the paper's file."""
    return ask.paper.recipe(method) or STANDALONE


def cells_of(ask: Ask) -> list[Cell]:
    """All runs that the requested cells need, each experiment once; what a column is compared with comes first."""
    found: dict[str, Cell] = {}
    for column in ask.columns:
        if column.measure not in RUN:
            continue
        beside = recipe_of(ask, UNIT) if column.measure in RATIOS else STANDALONE
        for recipe in (beside, *(recipe_of(ask, m) for m in ask.methods)):
            for seed in range(ask.seeds):
                cell = cell_of(ask, column, recipe, seed)
                found.setdefault(cell.key, cell)
    return list(found.values())


def cell_of(ask: Ask, column: Column, recipe: Recipe, seed: int) -> Cell:
    """The run behind one method, column and seed."""
    return Cell(recipe.name, column.name, experiment_of(ask, column, recipe, seed))


def experiment_of(ask: Ask, column: Column, recipe: Recipe, seed: int = 0) -> Experiment:
    """The paper's settings, then the table's, the column's, the method's, the code's, the scale's and the user's."""
    layers = [ask.table.changes, column.changes, recipe.changes]
    method = recipe.method
    if ask.rules == "code" and ask.paper.code:
        layers += [ask.paper.code.changes, ask.table.code, column.code]
        method = recipe.code or method
    values = merged(ask.paper.changes.values, *(layer.values for layer in (*layers, ask.scale.changes)))
    asked = merged(ask.settings.values, column.sweep.values)
    values = merged(values, {k: v for k, v in asked.items() if k != "method"})
    options = column.options.values if recipe.name in ask.table.methods else {}  # not of a method run beside them
    chosen = Choice.parse(method, "method")
    values["method"] = merged(chosen.plain(), options, _options(chosen.name, asked.get("method", {})))
    values["seed"] = seed
    found = experiment_from(values).resolved()
    batch = max(1, round(found.train.batch * ask.scale.batch))
    return dataclasses.replace(found, train=dataclasses.replace(found.train, batch=batch))


def _options(method: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The requested options that this method has."""
    known = field_types(find_class("method", method.partition("@")[0])) if asked else {}
    return {k: v for k, v in asked.items() if k in known}


def on_workers(experiment: Experiment, workers: Workers | None) -> Experiment:
    """The same experiment with this many workers; None changes nothing."""
    if workers is None:
        return experiment
    return dataclasses.replace(experiment, engine=dataclasses.replace(experiment.engine, workers=workers))
