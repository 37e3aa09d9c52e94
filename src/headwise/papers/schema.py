"""The form of a paper's file: what a table prints, how it was measured, and the settings behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from ..errors import ConfigError
from ..settings.fields import Count, Parsed, Range, Share, Unit

Moment = Literal["pre", "stale", "global"]
Ratio = Literal["pace", "convergence", "duration"]
"""time per round, rounds to convergence, and their product, as multiples of FedAvg's: seconds depend on the machine"""
RATIOS = get_args(Ratio)
UNIT = "FedAvg"
"""whose figures ratios are multiples of"""
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

    def plain(self) -> Any:
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

    def plain(self) -> str:
        return self.text

    @property
    def missing(self) -> bool:
        """Whether the paper prints nothing here."""
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
    """One printed table."""

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
    """The printed numbers of one table."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Printed, ...], ...]


@dataclass(frozen=True)
class Numbers:
    """The file of a paper's numbers."""

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
