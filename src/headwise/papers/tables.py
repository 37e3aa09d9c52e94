"""Papers as data: finding a table by its name, and reading it.

A paper is a TOML file: `fedgmh.toml` says how its tables are run, `fedgmh.numbers.toml` what they print. Reading them
checks every key, type and name, and imports nothing heavy. A path to your own TOML file works as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ConfigError, nearest
from ..settings.fields import build
from ..settings.overrides import read_toml
from .schema import RATIOS, UNIT, Grid, Numbers, Paper, Table

HOME = Path(__file__).parent
ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}


def papers() -> list[Paper]:
    """All papers that come with Headwise."""
    return [load(str(p)) for p in sorted(HOME.glob("*.toml")) if not p.name.endswith(".numbers.toml")]


def find(name: str) -> tuple[Paper, Table]:
    """The table of this name: `fedgmh/2`, `fedah/IV`, or `path/to/own.toml/1`."""
    paper, _, wanted = name.rpartition("/")
    known = {p.name.lower(): p for p in papers()} if not paper.endswith(".toml") else {}
    if not paper.endswith(".toml") and paper.lower() not in known:
        every = [f"{k}/{t.name}" for k, p in known.items() for t in p.tables]
        raise ConfigError(f"table is {name!r}, which is not known: {nearest(name.lower(), every)}")
    found = known[paper.lower()] if known else load(paper)
    tables = {t.name: t for t in found.tables}
    wanted = ROMAN.get(wanted.lower(), wanted.lower())
    if wanted not in tables:
        raise ConfigError(f"table is {name!r}, but {found.name} has no such table: {nearest(wanted, tables)}")
    return found, tables[wanted]


@cache
def load(path: str) -> Paper:
    """The paper in this file, with the numbers beside it."""
    file = Path(path)
    found, beside = build(Paper, read_toml(file), file.stem), file.with_suffix(".numbers.toml")
    if beside.exists():
        grids = {g.name: g for g in build(Numbers, read_toml(beside), beside.stem).tables}
        filled = tuple(t if t.rows else _filled(t, grids.get(t.name), path) for t in found.tables)
        found = dataclasses.replace(found, tables=filled)
    for table in found.tables:
        _check(path, found, table)
    return found


def _filled(table: Table, grid: Grid | None, path: str) -> Table:
    names = tuple(c.name for c in table.columns)
    if grid is None or grid.columns != names:
        raise ConfigError(f"{path}, table {table.name}: its columns are not the columns in its file of numbers.")
    return dataclasses.replace(table, rows=grid.rows)


def _check(path: str, paper: Paper, table: Table) -> None:
    """Every name that refers to another must match one, and every row must have one entry per column."""
    recipes, names = {r.name for r in paper.methods}, [c.name for c in table.columns]
    trained = any(c.measure not in ("total", "width", "size", "claim") for c in table.columns)
    wrong = [m for m in table.methods if trained and m not in recipes]
    wrong += [row[0].text if row else "an empty row" for row in table.rows if len(row) != len(names) + 1]
    wrong += [c.name for c in table.columns if c.measure in RATIOS and UNIT not in table.methods]
    wrong += [c for n in table.notes for c in n.columns if c not in names]
    wrong += [m for n in table.notes for m in n.methods if m not in table.methods]
    if wrong or not table.rows:
        raise ConfigError(f"{path}, table {table.name}: {', '.join(wrong) or 'rows'} does not fit the other entries.")


def choose(wanted: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The known names that contain these words in sequence; a full name matches only itself."""
    names, found = list(known), []
    for text in wanted:
        words = _words(text)
        same = [n for n in names if _words(n) == words]
        hits = same or [n for n in names if words and _holds(_words(n), words)]
        if not hits:
            raise ConfigError(f"{what} is {text!r}, which is not in the table: {nearest(text, names)}")
        found += [n for n in hits if n not in found]
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"[\w.*~%&]+", text.lower().replace("-", ""))


def _holds(words: list[str], part: list[str]) -> bool:
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Trees of settings merged, table by table; later values win."""
    found = dict(first)
    for other in others:
        for key, value in other.items():
            both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = merged(found[key], value) if both else value
    return found
