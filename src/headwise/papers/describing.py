"""A table's card: what it prints, and how it is reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..disk.jsontext import leaves
from .schema import RATIOS, UNIT, Paper, Table
from .tables import find, merged


def card(name: str) -> str:
    """Everything about a table, as text."""
    paper, table = find(name)
    return "\n".join(_lines(paper, table))


def _lines(paper: Paper, table: Table) -> Iterator[str]:
    yield f"{paper.name}, {table.name}: {table.title}"
    yield f"{paper.citation}\n"
    yield from _grid(table)
    yield "\nsettings"
    yield f"  all columns: {said(merged(paper.changes.values, table.changes.values))}"
    for column in table.columns:
        own = merged(column.changes.values, {"method": column.options.values} if column.options.values else {})
        what = f"{column.measure}, as a multiple of {UNIT}'s" if column.measure in RATIOS else column.measure
        yield f"  {column.name}: {what}{f', {said(own)}' if own else ''}"
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
        extra += [said(r.changes.values)] if r.changes.values else []
        extra += [f"code: {r.code}"] if r.code else []
        yield f"  {r.name}: {', '.join([r.method, *extra])}"


def _code(paper: Paper) -> Iterator[str]:
    if paper.code is None:
        yield "  code: there is no public code"
        return
    yield f"  code: {said(paper.code.changes.values)}"
    yield from (f"    {text}" for text in paper.code.words)


def said(values: Mapping[str, Any]) -> str:
    """A tree of settings in one line."""
    return ", ".join(f"{name} = {value}" for name, value in leaves(values))
