"""Papers as data: a table's printed numbers, how they were measured, the settings behind them, and how to find it.

A paper is a TOML file: `fedgmh.toml` describes how its tables are run, `fedgmh.numbers.toml` what they print. Reading
them checks every key, type and name, and imports nothing heavy. A path to your own TOML file works as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from ..disk.jsontext import leaves
from ..errors import ConfigError, nearest
from ..settings.choices import Choice
from ..settings.experiment import read_toml
from ..settings.fields import Count, Parsed, Range, Share, Unit, build
from ..settings.names import ROOMS

HOME = Path(__file__).parent
ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}
Moment = Literal["pre", "stale", "global"]
Ratio = Literal["pace", "convergence", "duration"]
"""time per round, rounds to convergence, and their product, as multiples of FedAvg's: seconds depend on the machine"""
RATIOS = get_args(Ratio)
UNIT = "FedAvg"
"""the method whose figures ratios are multiples of"""
Measure = Literal[Ratio, "accuracy", "rounds", "traffic", "total", "parameters", "width", "size", "claim"]
"""accuracy, rounds (to a target) and ratios are run; the others are computed exactly"""


@dataclass(frozen=True)
class Changes(Parsed):
    """Settings of an experiment, or options of a method, as a tree of plain values."""

    values: Mapping[str, Any]

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{at} is {value!r}, but must be a table of settings.")
        return cls(value)

    def to_plain(self) -> Any:
        return dict(self.values)


NONE = Changes({})


@dataclass(frozen=True)
class Printed(Parsed):
    """A printed cell: ``88.30 ± 0.95``, ``149.07 MB``, a formula, or ``-`` and why."""

    text: str
    mean: float | None = None
    """in the unit of the column; sizes in KB"""
    std: float | None = None
    last_digit: float = 0.0
    """the value of one unit in the last printed digit"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        if not isinstance(value, str):
            raise ConfigError(f"{at} is {value!r}, but must be a text such as '88.30 ± 0.95'.")
        match = re.fullmatch(r"(\d+(?:\.(\d+))?)(?: ± (\d+(?:\.\d+)?))?(?: (KB|MB))?", value)
        if match is None:
            return cls(value)
        unit = 1024.0 if match[4] == "MB" else 1.0
        digit = unit * 10.0 ** -len(match[2] or "")
        return cls(value, float(match[1]) * unit, float(match[3]) if match[3] else None, digit)

    def to_plain(self) -> str:
        return self.text

    @property
    def missing(self) -> bool:
        return self.text.startswith("-")


@dataclass(frozen=True)
class CountedOn:
    """The task that messages and models are counted on, where nothing is trained."""

    shape: tuple[Count, ...]
    classes: Count
    own: Count
    """classes of each client"""
    clients: Count = 10


@dataclass(frozen=True)
class Column:
    """One column: what it measures, and how its experiment differs from the table's."""

    name: str
    measure: Measure = "accuracy"
    changes: Changes = NONE
    code: Changes = NONE
    """further changes under the rules of the public code"""
    options: Changes = NONE
    """options of the paper's own method that the column varies"""
    sweep: Changes = NONE
    """the setting varied by `--sweep`; never in a file"""
    moment: Moment | None = None
    """none: the method's"""
    target: Unit | None = None
    """accuracy for `rounds`: the column prints the first round that reaches it"""
    task: CountedOn | None = None
    layer: Annotated[int, Range(0, 100)] = 0
    rounds: str = ""
    """the column with the rounds that `total` multiplies"""


@dataclass(frozen=True)
class Recipe:
    """How a method of the table is run."""

    name: str
    """as the table prints it"""
    method: str
    code: str = ""
    """under the rules of the public code, where they differ"""
    moment: Moment | None = None
    changes: Changes = NONE
    uncounted: str = "0"
    """what the paper's traffic leaves out, in scalars: c own classes, bias of the head, M models of others"""


Metric = Literal["accuracy", "client_mean"]
"""over all test samples, or the mean over the clients"""


@dataclass(frozen=True)
class Code:
    """What the public code does differently from the paper."""

    words: tuple[str, ...]
    changes: Changes = NONE
    moment: Moment | None = None
    window: Count | None = None
    """only this many of the last rounds count"""
    metric: Metric | None = None
    """none: the paper's"""


@dataclass(frozen=True)
class Scale:
    """A named variant of all of a paper's experiments; the first is the full one."""

    name: str
    words: str
    """what it keeps and what it changes"""
    changes: Changes = NONE
    batch: Share = 1.0
    """factor on the batch size, which keeps the number of steps with fewer samples"""


@dataclass(frozen=True)
class Note:
    """What a reader of these cells must know; without methods or columns it applies to all of them."""

    text: str
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    comparable: bool = True

    def applies(self, method: str, column: str) -> bool:
        return (not self.methods or method in self.methods) and (not self.columns or column in self.columns)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Printed, ...], ...] = ()
    """the method's name, then one entry per column; empty if they are in the file of numbers"""
    changes: Changes = NONE
    code: Changes = NONE
    """further changes under the rules of the public code"""
    notes: tuple[Note, ...] = ()

    def cell(self, method: str, column: str) -> Printed:
        """The printed cell; `-` for a method that is not in the table."""
        place = [c.name for c in self.columns].index(column)
        return next((row[place + 1] for row in self.rows if row[0].text == method), Printed("-"))

    @property
    def methods(self) -> list[str]:
        """In the order of the rows."""
        return [row[0].text for row in self.rows if row]


@dataclass(frozen=True)
class Grid:
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Printed, ...], ...]


@dataclass(frozen=True)
class Numbers:
    tables: tuple[Grid, ...]


@dataclass(frozen=True)
class Paper:
    """A paper: how it trains and measures, its methods, the variants that can be run, its tables."""

    name: str
    citation: str
    tables: tuple[Table, ...]
    metric: Metric = "accuracy"
    moment: Moment = "pre"
    seeds: Count | None = None
    """how many the paper ran; None if it does not say"""
    open: tuple[str, ...] = ()
    """what the paper leaves open, and what we use"""
    changes: Changes = NONE
    methods: tuple[Recipe, ...] = ()
    scales: tuple[Scale, ...] = (Scale("full", "as printed"),)
    code: Code | None = None

    def recipe(self, method: str) -> Recipe | None:
        """How this method is run; None if the paper's file does not say."""
        return next((r for r in self.methods if r.name == method), None)


def papers() -> list[Paper]:
    return [load(str(p)) for p in sorted(HOME.glob("*.toml")) if not p.name.endswith(".numbers.toml")]


def find(name: str) -> tuple[Paper, Table]:
    """The table of this name: `fedgmh/2`, `fedah/IV`, or `path/to/own.toml/1`."""
    paper_name, _, table_name = name.rpartition("/")
    is_file = paper_name.endswith(".toml")
    known = {} if is_file else {p.name.lower(): p for p in papers()}
    whole = known.get(name.lower()) or (load(name) if name.endswith(".toml") else None)
    if whole is not None:
        tables = ", ".join(f"{name}/{t.name}" for t in whole.tables)
        raise ConfigError(f"table is {name!r}, which is a paper: its tables are {tables}.")
    if not is_file and paper_name.lower() not in known:
        every = [f"{k}/{t.name}" for k, p in known.items() for t in p.tables]
        raise ConfigError(f"table is {name!r}, which is not known: {nearest(name.lower(), every)}")
    paper = known[paper_name.lower()] if known else load(paper_name)
    tables = {t.name: t for t in paper.tables}
    key = ROMAN.get(table_name.lower(), table_name.lower())
    if key not in tables:
        raise ConfigError(f"table is {name!r}, but {paper.name} has no such table: {nearest(key, tables)}")
    return paper, tables[key]


@cache
def load(path: str) -> Paper:
    """The paper in this file, with the numbers beside it."""
    file = Path(path)
    paper = build(Paper, read_toml(file), file.stem)
    beside = file.with_suffix(".numbers.toml")
    if beside.exists():
        grids = {g.name: g for g in build(Numbers, read_toml(beside), beside.stem).tables}
        tables = tuple(t if t.rows else _fill(t, grids.get(t.name), path) for t in paper.tables)
        paper = dataclasses.replace(paper, tables=tables)
    for table in paper.tables:
        _check(path, paper, table)
    return paper


def _fill(table: Table, grid: Grid | None, path: str) -> Table:
    names = tuple(c.name for c in table.columns)
    if grid is None or grid.columns != names:
        raise ConfigError(f"{path}, table {table.name}: its columns are not the columns in its file of numbers.")
    return dataclasses.replace(table, rows=grid.rows)


def _check(path: str, paper: Paper, table: Table) -> None:
    """Every name that refers to another must match one, and every row must have one entry per column."""
    recipes = {r.name for r in paper.methods}
    names = [c.name for c in table.columns]
    trained = any(c.measure not in ("total", "width", "size", "claim") for c in table.columns)
    wrong = [m for m in table.methods if trained and m not in recipes]
    wrong += [row[0].text if row else "an empty row" for row in table.rows if len(row) != len(names) + 1]
    wrong += [c.name for c in table.columns if c.measure in RATIOS and UNIT not in table.methods]
    wrong += [c for n in table.notes for c in n.columns if c not in names]
    wrong += [m for n in table.notes for m in n.methods if m not in table.methods]
    if wrong or not table.rows:
        raise ConfigError(f"{path}, table {table.name}: {', '.join(wrong) or 'rows'} does not fit the other entries.")


def choose(texts: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The known names that contain these words in sequence; a full name matches only itself."""
    names = list(known)
    chosen = list[str]()
    for text in texts:
        words = _words(text)
        same = [n for n in names if _words(n) == words]
        hits = same or [n for n in names if words and _holds(_words(n), words)]
        if not hits:
            raise ConfigError(f"{what} is {text!r}, which is not in the table: {nearest(text, names)}")
        chosen += [n for n in hits if n not in chosen]
    return chosen


def _words(text: str) -> list[str]:
    return re.findall(r"[\w.*~%&]+", text.lower().replace("-", ""))


def _holds(words: list[str], part: list[str]) -> bool:
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))


def merge(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Trees of settings merged, table by table; later values win, and options alone keep the name before them."""
    tree = dict(first)
    for other in others:
        for key, value in other.items():
            before = tree.get(key)
            if isinstance(before, str) and key in ROOMS and isinstance(value, Mapping) and "name" not in value:
                before = Choice.parse(before, key).to_plain()
            tree[key] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return tree


def describe_table(name: str) -> str:
    paper, table = find(name)
    return "\n".join(_describe(paper, table))


def _describe(paper: Paper, table: Table) -> Iterator[str]:
    yield f"{paper.name}, {table.name}: {table.title}"
    yield f"{paper.citation}\n"
    yield from _grid(table)
    yield "\nsettings"
    yield f"  all columns: {one_line(merge(paper.changes.values, table.changes.values))}"
    for column in table.columns:
        own = merge(column.changes.values, {"method": column.options.values} if column.options.values else {})
        what = f"{column.measure}, as a multiple of {UNIT}'s" if column.measure in RATIOS else column.measure
        yield f"  {column.name}: {what}{f', {one_line(own)}' if own else ''}"
    yield from _methods(paper, table)
    metric = "over all test samples" if paper.metric == "accuracy" else "as the mean over the clients"
    code = paper.code and paper.code.metric and paper.code.metric != paper.metric
    metric += " (the other way under the code's rules)" if code else ""
    yield f"\nmeasured {metric}, moment {paper.moment} unless the method says otherwise, best round"
    yield f"seeds in the paper: {paper.seeds or 'not printed'}"
    yield from (f"open: {text}" for text in paper.open)
    yield "\nscales"
    yield from (f"  {scale.name}: {scale.words}" for scale in paper.scales)
    yield "\nrules\n  paper: what the paper says"
    yield from _code(paper)
    for note in table.notes:
        about = ", ".join((*note.methods, *note.columns)) or "all"
        yield f"note: {about}: {note.text}"
    yield f"\nheadwise reproduce {paper.name.lower()}/{table.name} --plan    estimates how long it would take here"


def _grid(table: Table) -> Iterator[str]:
    rows = [
        ["", *(c.name for c in table.columns)],
        *(["-" if p.missing else p.text for p in row] for row in table.rows),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    yield from ("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _methods(paper: Paper, table: Table) -> Iterator[str]:
    recipes = [r for m in table.methods if (r := paper.recipe(m))]
    if recipes:
        yield "methods"
    for r in recipes:
        extra = [f"moment {r.moment}"] if r.moment else []
        extra += [one_line(r.changes.values)] if r.changes.values else []
        extra += [f"code: {r.code}"] if r.code else []
        yield f"  {r.name}: {', '.join([r.method, *extra])}"


def _code(paper: Paper) -> Iterator[str]:
    if paper.code is None:
        yield "  code: there is no public code"
        return
    yield f"  code: {one_line(paper.code.changes.values)}"
    yield from (f"    {text}" for text in paper.code.words)


def one_line(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in leaves(values))
