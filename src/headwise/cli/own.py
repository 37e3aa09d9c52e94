"""``headwise data init`` and ``headwise data check``: from a table or a folder to a data.toml that can be run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..disk.jsontext import to_json
from ..errors import ConfigError, DataError, RunError, counted
from ..settings.options import OUTPUTS
from .options import json_option
from .paths import INPUT_FILE, OUTPUT_FILE

MOST_CLASSES = 100
"""that are written into a data.toml"""


def is_description(values: Mapping[str, Any]) -> bool:
    """Whether a TOML file describes data rather than an experiment."""
    return "format" in values and "path" in values


@click.command(name="init")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--clients", default="", metavar="COLUMN", help="the column that says whose row it is, in one table")
@click.option("--one-client", is_flag=True, help="the table belongs to one client, as at a site")
@click.option("--target", multiple=True, metavar="COLUMN", help="the column to predict; repeatable")
@click.option("-o", "--out", type=OUTPUT_FILE, default="data.toml", help="the file to write  [data.toml]")
def init(path: Path, clients: str, one_client: bool, target: tuple[str, ...], out: Path) -> None:
    """Look at PATH, a table or a folder with one folder or file per client, and describe it in a data.toml."""
    from ..data.own.description import MISSING
    from ..data.own.findings import Findings
    from ..data.own.looking import look
    from ..data.own.source import load
    from ..data.own.writing import commented
    from ..disk.files import write_bytes
    from ..settings.fields import dump

    if out.exists():
        raise RunError(f"{out} exists already: choose another -o, or remove it.")
    if one_client and clients:
        raise ConfigError(f"--clients is {clients!r}, but --one-client is given, too: choose one of them.")
    found = look(path, clients, target, one_client=one_client)
    report = Findings()
    try:
        loaded = load(found.description, report)
    except DataError as error:  # the first finding says where and why
        raise DataError(next((str(f) for f in report.all() if f.level == "error"), str(error))) from None
    task, classes = loaded.targets.task, loaded.targets.classes
    listed = classes if task == "classification" and len(classes) <= MOST_CLASSES else ()
    beside = os.path.relpath(path, out.parent)
    write_bytes(out, commented(found, beside, listed, task).encode())
    _describe(out, loaded)
    if header := found.description.header:
        click.echo(f"no header line: columns are named {header[0]} to {header[-1]}")
    for kind, names in dump(found.description.features).items():
        if names:
            click.echo(f"{kind:9} {', '.join(names)}")
    for name, why in found.left_out.items():
        click.echo(f"left out  {name}: {why}")
    if markers := found.description.missing[len(MISSING) :]:
        click.echo(f"missing   {', '.join(map(repr, markers))}, where other cells of the column are numbers")
    click.echo(f"Look at its comments, then: headwise data check {out}")


@click.command(name="check")
@click.argument("file", type=INPUT_FILE)
@json_option
def check(file: Path, as_json: bool) -> None:
    """Read everything that the data.toml FILE describes, and say what is wrong where."""
    from ..data.own.check import check as find
    from ..data.own.description import read_description

    loaded, findings = find(read_description(file))
    errors = sum(f.level == "error" for f in findings)
    if as_json:
        plain = [{**vars(f), "file": str(f.file or "")} for f in findings]
        click.echo(to_json({"errors": errors, "warnings": len(findings) - errors, "findings": plain}))
    else:
        for finding in findings:
            click.echo(f"{finding.level:7}  {finding}")
        if loaded is not None:
            _describe(file, loaded)
    if errors:
        raise DataError(f"{file} has {counted(errors, 'error')}: correct the data or this file.")
    if not as_json:
        warnings = f", {counted(len(findings), 'warning')}" if findings else ""
        alone = loaded is not None and len(loaded.raw.owners) == 1
        click.echo(f"No errors{warnings}: headwise {'site init FOLDER --data' if alone else 'run --data'} {file}")


def _describe(file: Path, loaded: Any) -> None:
    click.echo(f"{file} describes {_words(loaded)}.")
    for note in loaded.dataset.notes:
        click.echo(f"{note[0].upper()}{note[1:]}")


def _words(loaded: Any) -> str:
    """How much there is."""
    raw, found = loaded.raw, loaded.targets
    targets, samples = counted(len(found.classes), OUTPUTS[found.task]), counted(len(raw), "sample")
    return f"{counted(len(raw.owners), 'client')} with {samples} of {_size(loaded.dataset.recipe)}, {targets}"


def _size(recipe: Any) -> str:
    """Of one sample, as a user sees it."""
    if recipe.form == "table" or (len(recipe.shape) == 1 and not recipe.vocabulary):
        return counted(len(recipe.columns) or recipe.shape[0], "feature")
    return f"up to {counted(recipe.shape[0], 'word')}" if recipe.vocabulary else " x ".join(map(str, recipe.shape))


def show_targets(found: Any, as_json: bool) -> None:
    """Who has how much, where there are no classes to count."""
    from .tables import table_text

    names, y = found.dataset.classes, found.dataset.y
    head = ["client", *(["name"] if found.names else []), "train", "val", "test", *names]
    rows: list[list[str]] = []
    for c, p in enumerate(found.parts):
        values = y[p.train]
        if found.dataset.task == "segmentation":
            told = [f"{(values == k).mean():.1%}" for k in range(len(names))]
        elif found.dataset.task == "multilabel":
            told = [f"{share:.1%}" for share in values.mean(0)]
        else:
            told = [f"{m:.4g} ± {s:.4g}" for m, s in zip(values.mean(0), values.std(0), strict=True)]
        rows.append([str(c), *found.names[c : c + 1], str(len(p.train)), str(len(p.val)), str(len(p.test)), *told])
    if as_json:
        click.echo(to_json({"task": found.dataset.task, "columns": head, "clients": rows}))
        return
    said = {"segmentation": "share of pixels", "multilabel": "share of samples", "regression": "mean ± deviation"}
    click.echo(f"{found.dataset.task}: {said[found.dataset.task]} in training samples")
    click.echo(table_text(head, rows, numbers_from=1, width=160))
