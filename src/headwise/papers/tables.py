"""Papers as data: finding a table by its name, and reading it.

A paper is a TOML file: `fedgmh.toml` says how its tables are run, `fedgmh.numbers.toml` what they print. Reading them
checks every key, type and name, and imports nothing heavy. A path to your own TOML file works as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..disk.jsontext import leaves
from ..errors import ConfigError, nearest
from ..settings.experiment import read_toml
from ..settings.fields import build
from .schema import RATIOS, UNIT, Grid, Numbers, Paper, Table

HOME = Path(__file__).parent
ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}


def papers() -> list[Paper]:
    """All papers that come with Headwise."""
    return [load(str(p)) for p in sorted(HOME.glob("*.toml")) if not p.name.endswith(".numbers.toml")]


def find(name: str) -> tuple[Paper, Table]:
    """The table of this name: `fedgmh/2`, `fedah/IV`, or `path/to/own.toml/1`."""
    paper_name, _, table_name = name.rpartition("/")
    is_file = paper_name.endswith(".toml")
    known = {} if is_file else {p.name.lower(): p for p in papers()}
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
    """Trees of settings merged, table by table; later values win."""
    tree = dict(first)
    for other in others:
        for key, value in other.items():
            both = isinstance(value, Mapping) and isinstance(tree.get(key), Mapping)
            tree[key] = merge(tree[key], value) if both else value
    return tree


def describe_table(name: str) -> str:
    """Everything about a table, as text."""
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
    """A tree of settings in one line."""
    return ", ".join(f"{name} = {value}" for name, value in leaves(values))
