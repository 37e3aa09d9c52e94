"""``headwise data``: describe and check your own data, divide it, and see who would hold what before training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ...app import registry
from ...disk.jsontext import to_json
from ...errors import ConfigError, DataError, RunError, capitalize, pluralize
from ...settings.experiment import read_toml
from ...tasks.registry import kind_of
from ..options import INPUT_FILE, OUTPUT_FILE, OUTPUT_FOLDER, data_option, experiment_of, flags, json_option, set_option
from ..output import table_text

MOST_CLIENTS = 40
"""in a table; more don't fit a terminal"""
MOST_CLASSES = 20
MOST_CLASSES_WRITTEN = 100
"""into a data.toml"""


@click.group(name="data")
def command() -> None:
    """Look at data before anything is trained."""


@command.command(name="show")
@click.argument("config", required=False, type=INPUT_FILE)
@flags("data", "partition", "split", "clients")
@set_option("data_seed=1")
@click.option("-o", "--out", type=OUTPUT_FILE, help="a page with the partition's picture")
@data_option
@json_option
def show(
    config: Path | None,
    changes: tuple[str, ...],
    out: Path | None,
    data_dir: Path | None,
    as_json: bool,
    **given: str | None,
) -> None:
    """Show who holds which labels, from the TOML file CONFIG (an experiment, or a data.toml) and flags."""
    if config is not None and {"format", "path"} <= read_toml(config).keys():  # it describes data, not an experiment
        given["data"] = str(config)
        config = None
    experiment = experiment_of(config, changes, given)
    from ...app.launch import data_folder
    from ...app.prepare import divide
    from ...disk.files import write_bytes
    from ...report.page import describe_partition, render_partition, tabulate_partition
    from ...runs.query import title_of
    from ...settings.fields import dump

    data = divide(experiment, data_folder(data_dir))
    if not kind_of(data.dataset.task).one_class:
        _show_targets(data, as_json)
        return
    summary = dump(data.summary)
    counts = data.histograms()
    classes = list(data.dataset.classes)
    chosen = {k: registry.resolve(k, getattr(experiment, k)).to_plain() for k in ("data", "partition")}
    title = title_of({**experiment.to_plain(), **chosen, "clients": len(data)})
    if out is not None:
        write_bytes(out, render_partition(title, summary, counts, classes, data.names).encode())
    if as_json:
        names = {"client_names": list(data.names)} if data.names else {}
        click.echo(to_json({"title": title, **summary, "class_names": classes, "samples": counts, **names}))
        return
    click.echo(title)
    head, rows = tabulate_partition(counts, classes, data.names)
    if len(rows) > MOST_CLIENTS or len(classes) > MOST_CLASSES:
        click.echo(f"{len(rows)} clients and {len(classes)} classes are too many for a table here: -o writes a page.")
    else:
        click.echo(table_text(head, rows, numbers_from=0, width=160))
    click.echo("\n".join(describe_partition(summary)))
    if out is not None:
        click.echo(f"The picture is in {out}.")


@command.command(name="init")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--clients", default="", metavar="COLUMN", help="the column that names the client of each row, in one table"
)
@click.option("--one-client", is_flag=True, help="the table belongs to one client, as at a site")
@click.option("--target", multiple=True, metavar="COLUMN", help="the column to predict; repeatable")
@click.option("-o", "--out", type=OUTPUT_FILE, default="data.toml", help="the file to write  [data.toml]")
def init(path: Path, clients: str, one_client: bool, target: tuple[str, ...], out: Path) -> None:
    """Look at PATH, a table or a folder with one folder or file per client, and describe it in a data.toml."""
    from ...data.own.description import MISSING
    from ...data.own.findings import Findings
    from ...data.own.guess import guess_description, write_comments
    from ...data.own.load import load
    from ...disk.files import write_bytes
    from ...settings.fields import dump

    if out.exists():
        raise RunError(f"{out} exists already: choose another -o, or remove it.")
    if one_client and clients:
        raise ConfigError(f"--clients is {clients!r}, but --one-client is also given: choose one of them.")
    inspection = guess_description(path, clients, target, one_client=one_client)
    report = Findings()
    try:
        loaded = load(inspection.description, report)
    except DataError as error:  # the first finding says where and why
        raise DataError(next((str(f) for f in report.all() if f.level == "error"), str(error))) from None
    task = loaded.dataset.task
    classes = loaded.dataset.classes
    listed = classes if kind_of(task).one_class and len(classes) <= MOST_CLASSES_WRITTEN else ()
    beside = os.path.relpath(path, out.parent)
    write_bytes(out, write_comments(inspection, beside, listed, task, loaded.dataset.label_type).encode())
    _describe(out, loaded)
    if header := inspection.description.header:
        click.echo(f"no header line: columns are named {header[0]} to {header[-1]}")
    for kind, names in dump(inspection.description.features).items():
        if names:
            click.echo(f"{kind:9} {', '.join(names)}")
    for name, why in inspection.left_out.items():
        click.echo(f"left out  {name}: {why}")
    if markers := inspection.description.missing[len(MISSING) :]:
        click.echo(f"missing   {', '.join(map(repr, markers))}, where other cells of the column are numbers")
    click.echo(f"Look at its comments, then: headwise data check {out}")


@command.command(name="check")
@click.argument("file", type=INPUT_FILE)
@json_option
def check(file: Path, as_json: bool) -> None:
    """Read everything that the data.toml FILE describes, and report what is wrong and where."""
    from ...data.own.check import check as find
    from ...data.own.description import read_description

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
        raise DataError(f"{file} has {pluralize(errors, 'error')}: correct the data or this file.")
    if not as_json:
        warnings = f", {pluralize(len(findings), 'warning')}" if findings else ""
        verb = "site init FOLDER" if loaded is not None and len(loaded.raw.owners) == 1 else "run"
        click.echo(f"No errors{warnings}: headwise {verb} --data {file}")


def _describe(file: Path, loaded: Any) -> None:
    """Print how many clients, samples, features and classes there are, and what to know about them."""
    clients = pluralize(len(loaded.raw.owners), "client")
    samples = pluralize(len(loaded.raw), "sample")
    targets = pluralize(len(loaded.dataset.classes), kind_of(loaded.dataset.task).noun)
    click.echo(f"{file} describes {clients} with {samples} of {_size(loaded.dataset.recipe)}, {targets}.")
    for note in loaded.dataset.notes:
        click.echo(capitalize(note))


def _size(recipe: Any) -> str:
    """Of one sample, as a user sees it."""
    if recipe.form == "table" or (len(recipe.shape) == 1 and not recipe.vocabulary):
        return pluralize(len(recipe.columns) or recipe.shape[0], "feature")
    return f"up to {pluralize(recipe.shape[0], 'word')}" if recipe.vocabulary else " x ".join(map(str, recipe.shape))


def _show_targets(data: Any, as_json: bool) -> None:
    """Who has how much, where there are no classes to count."""
    kind = kind_of(data.dataset.task)
    names = data.dataset.classes
    head = ["client", *(["name"] if data.names else []), "train", "val", "test", *names]
    rows: list[list[str]] = []
    for c, p in enumerate(data.parts):
        cells = kind.describe_targets(data.dataset.y[p.train], len(names))
        rows.append([str(c), *data.names[c : c + 1], str(len(p.train)), str(len(p.val)), str(len(p.test)), *cells])
    if as_json:
        click.echo(to_json({"task": data.dataset.task, "columns": head, "clients": rows}))
        return
    click.echo(f"{kind.name}: {kind.target_figure} in training samples")
    click.echo(table_text(head, rows, numbers_from=1, width=160))


@command.command(name="deal")
@click.argument("data")
@flags("partition", "split", "clients")
@set_option("data_seed=1")
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, help="folder to write; it must be new")
@data_option
def deal(data: str, changes: tuple[str, ...], out: Path, data_dir: Path | None, **given: str | None) -> None:
    """Divide DATA (a data set or a data.toml) among clients, and write a folder with a data.toml for each."""
    experiment = experiment_of(None, changes, {**given, "data": data})
    from ...app.launch import data_folder
    from ...app.prepare import divide
    from ...data.own.objects import deal as write_folders
    from ...disk.files import explain_write_errors

    federation = divide(experiment, data_folder(data_dir))
    usual = federation.dataset.model or registry.make("data", experiment.data).default_model
    with explain_write_errors(out):
        homes = write_folders(federation, usual, out)
    for client, home in enumerate(homes):
        click.echo(f"headwise site init {home / 'site'} --client {client} --data {home / 'data.toml'}")
    click.echo(f"headwise deploy {out / 'experiment.toml'} --server SERVER --out OUT")


@command.command(name="import")
@click.argument("layout", type=click.Choice(["pfllib", "fl-bench"]))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, help="folder to write; it must be new")
def import_(layout: str, folder: Path, out: Path) -> None:
    """Import FOLDER, which PFLlib or FL-bench generated: the same clients, split and values."""
    from ...data.own.description import read_description
    from ...data.own.load import load
    from ...data.own.peers import import_fl_bench, import_pfllib
    from ...disk.files import explain_write_errors

    with explain_write_errors(out):
        file = (import_pfllib if layout == "pfllib" else import_fl_bench)(folder, out)
    loaded = load(read_description(file))
    _describe(file, loaded)
    shape = loaded.dataset.x.shape[1:]
    model = "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else loaded.dataset.model
    click.echo(f"headwise run --data {file} --model {model}")
