"""From a table to experiments: one cell per method, column and seed, known by the hash of its experiment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..app import registry
from ..app.code import collect_code
from ..app.registry import resolve_all
from ..disk.files import digest
from ..disk.jsontext import to_json
from ..errors import ConfigError, nearest
from ..settings.choices import Choice
from ..settings.experiment import Experiment, experiment_from, override
from ..settings.fields import difference, field_types
from ..settings.options import Workers
from .tables import (
    NONE,
    RATIOS,
    UNIT,
    Changes,
    Column,
    Metric,
    Moment,
    Paper,
    Printed,
    Recipe,
    Scale,
    Table,
    choose,
    find,
    merge,
)

Rules = Literal["paper", "code"]
STANDALONE = Recipe("Standalone", "standalone", moment="stale")
RUN = ("accuracy", "rounds", *RATIOS)
"""the measures that need training"""
ADDED = {("lenet5", "head"): 1}
"""options that a network got after the first cells were published, with their defaults, which don't change a key"""


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
    def changed(self) -> bool:
        """Whether the runs differ from the paper's own in more than when they are measured."""
        return self.scaled or any(not text.strip().startswith("evaluate.") for text in self.set_by_hand)

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
        code = self.paper.code.metric if self.rules == "code" and self.paper.code else None
        return code or self.paper.metric

    @property
    def window(self) -> int | None:
        """How many of the last rounds count; None: all rounds."""
        return self.paper.code.window if self.rules == "code" and self.paper.code else None


@dataclass(frozen=True)
class Cell:
    method: str
    """as the table prints it"""
    column: str
    experiment: Experiment

    @property
    def key(self) -> str:
        """Identifies the experiment: the same on every machine, and in later versions that add settings."""
        values = {
            k: v for k, v in difference(self.experiment.to_plain(), Experiment().to_plain()).items() if k != "engine"
        }
        if models := values.get("model"):
            values["model"] = [{k: v for k, v in m.items() if ADDED.get((m["name"], k)) != v} for m in models]
        if code := collect_code(self.experiment).label:
            values["code"] = code
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
        raise ConfigError(f"rules is 'code', but {paper.name} has no public code: it must be paper.")
    scales = {s.name: s for s in paper.scales}
    scale = scale or paper.scales[0].name
    if scale not in scales:
        raise ConfigError(f"scale is {scale!r}, which {paper.name} does not have: {nearest(scale, scales)}")
    names = [c.name for c in table.columns]
    chosen = choose(columns, names, "columns") if columns else names
    known = list(dict.fromkeys((*table.methods, *(r.name for r in paper.methods), STANDALONE.name)))
    rows = choose(methods, known, "methods") if methods else table.methods
    chosen_columns = tuple(c for c in table.columns if c.name in chosen)
    return Ask(paper, table, chosen_columns, tuple(rows), scales[scale], "code" if rules == "code" else "paper", seeds)


def recipe_of(ask: Ask, method: str) -> Recipe:
    """How this method is run; Standalone needs no recipe in the paper's file."""
    return ask.paper.recipe(method) or STANDALONE


def cells_of(ask: Ask) -> list[Cell]:
    """All runs that the requested cells need, each experiment once; the baselines of a column come first."""
    cells: dict[str, Cell] = {}
    for column in ask.columns:
        if column.measure not in RUN:
            continue
        beside = recipe_of(ask, UNIT) if column.measure in RATIOS else STANDALONE
        for recipe in (beside, *(recipe_of(ask, m) for m in ask.methods)):
            for seed in range(ask.seeds):
                cell = cell_of(ask, column, recipe, seed)
                cells.setdefault(cell.key, cell)
    return list(cells.values())


def cell_of(ask: Ask, column: Column, recipe: Recipe, seed: int) -> Cell:
    return Cell(recipe.name, column.name, experiment_of(ask, column, recipe, seed))


def experiment_of(ask: Ask, column: Column, recipe: Recipe, seed: int = 0) -> Experiment:
    """The paper's settings, then the table's, the column's, the method's, the code's, the scale's and the user's."""
    layers = [ask.table.changes, column.changes, recipe.changes]
    method = recipe.method
    if ask.rules == "code" and ask.paper.code:
        layers += [ask.paper.code.changes, ask.table.code, column.code]
        method = recipe.code or method
    values = merge(ask.paper.changes.values, *(layer.values for layer in (*layers, ask.scale.changes)))
    own = merge(ask.settings.values, column.sweep.values)
    values = merge(values, {k: v for k, v in own.items() if k != "method"})
    options = (
        column.options.values if recipe.name in ask.table.methods else {}
    )  # not those of a baseline that is run next to them
    chosen = Choice.parse(method, "method")
    values["method"] = merge(chosen.to_plain(), options, _options(chosen.name, own.get("method", {})))
    values["seed"] = seed
    experiment = resolve_all(experiment_from(values))
    batch = max(1, round(experiment.train.batch * ask.scale.batch))
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, batch=batch))


def _options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that this method has."""
    known = field_types(registry.find("method", method.partition("@")[0])) if options else {}
    return {k: v for k, v in options.items() if k in known}


def with_workers(experiment: Experiment, workers: Workers | None) -> Experiment:
    """The same experiment with this many workers; None changes nothing."""
    if workers is None:
        return experiment
    return dataclasses.replace(experiment, engine=dataclasses.replace(experiment.engine, workers=workers))


CHOSEN = {"seed": "--seeds", "method": "--methods", "engine": "--workers"}
"""settings with a command-line option of their own"""


def with_settings(ask: Ask, settings: Sequence[str]) -> Ask:
    """Every cell with these settings, each like ``train.lr=0.1``."""
    tree = _tree(ask, settings, "set")
    _refuse_twice([*ask.set_by_hand, *settings])
    return dataclasses.replace(ask, settings=Changes(tree), set_by_hand=(*ask.set_by_hand, *settings))


def with_sweep(ask: Ask, sweep: str) -> Ask:
    """Each trained column, once per value of ``method.beta=0.1,0.3``; the paper prints nothing for these.

    A second sweep of another setting gives all pairs, as in a grid search.
    """
    path, sign, values = sweep.partition("=")
    each = [f"{path.strip()}={v.strip()}" for v in values.split(",") if v.strip()]
    if not sign or len(each) < 2 or len({*each}) < len(each):
        raise ConfigError(f"sweep is {sweep!r}, but must look like method.beta=0.1,0.3: two values or more, each once.")
    _refuse_twice([*ask.set_by_hand, sweep])
    columns = tuple(
        dataclasses.replace(
            c, name=f"{c.name}, {text}", sweep=Changes(merge(c.sweep.values, _tree(ask, [text], "sweep")))
        )
        for c in ask.columns
        if c.measure in RUN
        for text in each
    )
    if not columns:
        raise ConfigError(f"sweep is {sweep!r}, but nothing is trained in these columns of {ask.name}.")
    nothing = (Printed("- not printed"),) * len(columns)
    names = {c.name for c in columns}
    rows = tuple((Printed(method), *nothing) for method in ask.table.methods)
    notes = tuple(n for n in ask.table.notes if not n.columns or names & {*n.columns})
    table = dataclasses.replace(ask.table, columns=columns, rows=rows, notes=notes)
    return dataclasses.replace(ask, table=table, columns=columns, set_by_hand=(*ask.set_by_hand, sweep))


def _tree(ask: Ask, settings: Sequence[str], what: str) -> dict[str, Any]:
    """The settings as tables; a method's option must exist in at least one of the methods that are run."""
    tree = override({}, settings)
    for name, instead in CHOSEN.items():
        if name in tree and not (name == "method" and isinstance(tree[name], Mapping)):
            raise ConfigError(f"{what} is {settings[0]!r}, but {name} is chosen by {instead}.")
    known = [name for m in ask.methods for name in field_types(registry.find("method", _name(ask, m)))]
    for option in tree.get("method", {}):
        if option not in known:
            methods = ", ".join(ask.methods)
            where = f"which {methods} does not have" if len(ask.methods) == 1 else f"which none of {methods} has"
            raise ConfigError(f"{what} is 'method.{option}', {where}: {nearest(option, dict.fromkeys(known))}")
    return tree


def _refuse_twice(settings: Sequence[str]) -> None:
    """A setting has one value: of two, one would be ignored in silence."""
    paths = [text.partition("=")[0].strip() for text in settings]
    if twice := next((p for k, p in enumerate(paths) if p in paths[:k]), None):
        both = " and ".join(repr(text) for text, path in zip(settings, paths, strict=True) if path == twice)
        raise ConfigError(f"{twice} is set twice, by {both}: give it once.")


def _name(ask: Ask, method: str) -> str:
    return Choice.parse(recipe_of(ask, method).method, "method").name.partition("@")[0]  # without its preset
