"""``headwise describe``: a method's card, a published table and its settings, or what made a run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...app import registry
from ...disk.jsontext import leaves
from ...errors import ConfigError
from ...settings.experiment import Experiment
from ...settings.fields import difference, dump, field_help, field_types, summary_of, type_words
from ...settings.names import list_names
from ...settings.portfolio import describe_standing

if TYPE_CHECKING:
    from ...records import Record

NEEDS: dict[str, str] = {
    "none": "every client's message",
    "samples": "only the mean of the messages, weighted by samples: it can be masked",
    "clients": "only the unweighted mean of the messages: it can be masked",
    "labels": "only sums of the messages, label by label",
}
"""`Method.sums` in words"""
LINEAR = {"works": "yes", "alone": "yes, but clients share nothing", "fails": "no"}
"""`Method.without_body` in words"""
LETTERS = "(P model, F body, L head, K features, C classes, c own classes)"


@click.command(name="describe")
@click.argument("what", metavar="METHOD|TABLE|RUN")
@click.option("--code", is_flag=True, help="of a run: print your own files as they were when it ran")
def command(what: str, code: bool) -> None:
    """Show METHOD: its paper, what travels, what stays, its records and options.

    Or show TABLE, for example fedgmh/2: its printed numbers, settings, rules, scales and notes. Or show the folder RUN:
    when, with what and on which machine it was made, which of your own files decided its numbers, and its scores.
    """
    if os.path.isfile(Path(what) / "manifest.json"):
        _show_run(Path(what), code)
    elif code:
        raise ConfigError(f"--code is for a run, but {what!r} is not the folder of a run.")
    elif runs := _find_runs(Path(what)):
        raise ConfigError(
            f"{what!r} is not the folder of a run, but contains runs, as a comparison does: headwise report {what} "
            f"shows them, headwise describe {runs[0]} describes the first."
        )
    elif "/" in what and not what.endswith(".py"):
        from ...papers.tables import describe_table

        click.echo(describe_table(what))
    else:
        _show_method(what)


def _find_runs(folder: Path) -> list[Path]:
    """The runs in a folder, or in folders in it, as those of a grid; none where the name is that of a method."""
    is_folder = os.path.isdir(folder)  # false, not an error, for a name that is too long
    if folder.name in list_names("method") or not is_folder:
        return []
    return sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/manifest.json"))


def _show_method(method: str) -> None:
    cls = registry.find("method", method)
    from ...contract.method import record_types

    click.echo(f"{inspect.getdoc(inspect.getmodule(cls))}\n")
    click.echo(f"{inspect.getdoc(cls)}\n")
    types = record_types(cls)
    facts = {
        "family": cls.family,
        "travels": cls.travels,
        "stays": cls.stays,
        "scalars down, up": f"{cls.traffic_down}, {cls.traffic_up} {LETTERS}",
        "server needs": NEEDS[cls.sums],
        "different networks": cls.heterogeneous,
        "linear network": LINEAR[cls.without_body],
        "tasks": ", ".join(cls.tasks),
        "cost": f"{cls.cost:g} x FedAvg",
        "server keeps": _fields(types.server),
        "message down": _fields(types.down),
        "message up": _fields(types.up),
        "client keeps": _fields(types.client),
        "census": _fields(types.census),
        "client optimizers": cls.optimizers,
        **({"league": standing} if (standing := describe_standing(method)) else {}),
    }
    for name, text in facts.items():
        click.echo(f"{name:20}{text}")
    click.echo("\noptions" if field_types(cls) else "\nno options")
    for field in dataclasses.fields(cls):
        words = f"{_default(field)}  ({type_words(field_types(cls)[field.name])})"
        click.echo(f"  {field.name}{words}\n      {field_help(cls).get(field.name, '')}")
    for name, options in cls.presets.items():
        click.echo(f"  {method}@{name}: " + ", ".join(f"{k} = {v}" for k, v in options.items()))


def _show_run(folder: Path, with_files: bool) -> None:
    from ...app.code import read_code
    from ...runs.manifest import read_manifest
    from ...runs.query import Run
    from .run import show

    manifest = read_manifest(folder)
    own = difference(manifest["experiment"], Experiment().to_plain())
    made = {
        "made": f"{manifest['created']} by headwise {manifest['headwise']}, torch {manifest['versions']['torch']}",
        "command": shlex.join(manifest["command"]),
        "settings": ", ".join(f"{name} = {value}" for name, value in leaves(own)) or "the defaults",
        "machine": manifest["hardware"]["cpu"],
    }
    for name, text in made.items():
        click.echo(f"{name:20}{text}")
    for round_before, code in read_code(folder, manifest):
        since = f", after round {round_before}" if round_before else ""
        names = [*code.files, *(f"{package} {version}" for package, version in code.packages.items())]
        click.echo(f"{'your code' + since:20}{', '.join(names) or 'none'}; numerics {code.numerics}")
        for name, data in code.files.items() if with_files else ():
            click.echo(f"\n# {name}{since}\n{data.decode(errors='replace')}")
    if (run := Run(folder)).rounds and not with_files:
        show(run, as_json=False)


def _fields(record: type[Record]) -> str:
    from ...records import Nothing, fields_of

    if record is Nothing:
        return "nothing"
    words = summary_of(record)
    return f"{', '.join(fields_of(record))}: {words[:1].lower()}{words[1:]}"


def _default(field: dataclasses.Field[Any]) -> str:
    """As a user would type it; empty if the option is required."""
    if field.default_factory is not dataclasses.MISSING:
        return f" = {dump(field.default_factory())}"
    return "" if field.default is dataclasses.MISSING else f" = {dump(field.default)}"
