"""``headwise list``: methods, models, data and so on, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...app import registry
from ...disk.jsontext import to_json
from ...errors import ConfigError, nearest
from ...settings.names import Kind, list_names
from ...settings.portfolio import mean_rank
from ...tasks.registry import TASKS
from ..options import INPUT_FOLDER, json_option

KINDS: dict[str, Kind] = {"methods": "method", "models": "model", "data": "data", "partitions": "partition"}

METHOD_COLUMNS = ("name", "family", "cost", "rank", "summary")
"""what fits on a line; --json and `headwise describe` have the rest"""
WIDTH = 120


@click.command(name="list")
@click.argument("kind")
@json_option
@click.option("--runs", "folder", default="runs", type=INPUT_FOLDER, help="folder of runs  [runs]")
def command(kind: str, as_json: bool, folder: Path) -> None:
    """List KIND: methods, models, data, partitions, papers or runs. --json has every column, in full."""
    others = {"runs": lambda: _runs(folder), "papers": _papers}
    if kind not in (*KINDS, *others):
        raise ConfigError(f"kind is {kind!r}: {nearest(kind, [*KINDS, *others])}")
    rows = others[kind]() if kind in others else _entries(KINDS[kind])
    if as_json:
        click.echo(to_json({kind: rows}))
    elif not rows:
        click.echo(f"There are no runs in {folder}.")
    else:
        _print(kind, rows)


def _entries(kind: Kind) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for name in list_names(kind):
        try:
            entry = registry.read_card(kind, name)
        except ConfigError as error:  # another package's, which must not hide the rest
            broken.append({"name": name, "error": str(error)})
            continue
        facts = method_facts(entry) if kind == "method" else {}
        rows.append({"name": name, **facts, "summary": entry.summary, "options": list(entry.fields)})
    return rows + broken


def method_facts(entry: registry.Card) -> dict[str, Any]:
    """What to know before choosing a method; `tests/contract` checks that all of them support BatchNorm."""
    whole = "GlobalModel" in entry.bases or ("Averaging" in entry.bases and "shared" not in entry.functions)
    return {
        **{c: entry.facts.get(c, "") for c in ("family", "travels", "stays")},
        "different networks": entry.facts.get("heterogeneous", "no"),
        "BatchNorm": "yes",
        "global model": "yes" if whole or "global_model" in entry.functions else "no",
        "tasks": list(entry.facts.get("tasks", TASKS)),
        "cost": entry.facts.get("cost", 1.0),
        "rank": mean_rank(entry.name) or "",
    }


def _papers() -> list[dict[str, Any]]:
    from ...papers.tables import papers

    return [
        {
            "name": f"{paper.name.lower()}/{table.name}",
            "scales": [s.name for s in paper.scales],
            "rules": ["paper", *(["code"] if paper.code else [])],
            "summary": table.title,
        }
        for paper in papers()
        for table in paper.tables
    ]


def _runs(folder: Path) -> list[dict[str, Any]]:
    from ...errors import RunError
    from ...runs.query import find_runs

    rows: list[dict[str, Any]] = []
    for run in find_runs(folder):
        row: dict[str, Any] = {"run": str(run.path), "method": "", "data": "", "seed": "", "rounds": "", "metric": ""}
        try:
            s = run.summary()
            last = next((f"{a['last']:.4f}" for a in s[s["metric"]].values()), "")
            row |= {**{k: s[k] for k in row}, "last": last, "ended": run.ended}
        except RunError as error:  # list the others anyway
            row |= {"last": "", "ended": f"can't be read: {error}"}
        rows.append(row)
    return rows


def _print(kind: str, rows: list[dict[str, Any]]) -> None:
    """Aligned columns without a frame, for cut and grep."""
    texts = [
        {
            k: ", ".join(v) if isinstance(v, list) else str(v)
            for k, v in row.items()
            if kind != "methods" or k in METHOD_COLUMNS
        }
        for row in rows
        if "error" not in row
    ]
    width = {k: max(len(k), *(len(t.get(k, "")) for t in texts)) for k in texts[0]}
    click.echo("  ".join(k.ljust(width[k]) for k in width).rstrip())
    for text in texts:
        line = "  ".join(text.get(k, "").ljust(width[k]) for k in width).rstrip()
        click.echo(f"{line[: WIDTH - 1]}…" if kind in KINDS and len(line) > WIDTH else line)
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}")
