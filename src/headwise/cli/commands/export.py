"""``headwise export``: a run's models as folders that load anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ...disk.files import check_new_folder
from ...errors import ConfigError, pluralize
from ..options import INPUT_FOLDER, OUTPUT_FOLDER, moved_option, quiet_option

FORMAT = click.option(
    "--format",
    type=click.Choice(["onnx", "torch"]),
    default="onnx",
    help="onnx: a program; torch: weights of a single network  [onnx]",
)
LONGEST = 150
"""bytes of a folder's name: drafts of it have longer ones"""
LICENCE = click.option("--licence", default="", help="licence of the model, for its card: CC-BY-4.0, or a sentence")


@click.command(name="export")
@click.argument("run", type=INPUT_FOLDER)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="client, by name, or by number if it has none; repeatable",
)
@click.option("--all", "everyone", is_flag=True, help="all clients, each in its own folder below DIR")
@click.option("--global", "global_model", is_flag=True, help="the global model, for methods that have one")
@click.option(
    "--newcomer", is_flag=True, help="an offer for a site that joins after the last round: headwise site adapt"
)
@FORMAT
@click.option("--moment", default="pre", help="pre: after a download; post: after its last training  [pre]")
@click.option("--round", "which", default="last", help="last or best  [last]")
@LICENCE
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, metavar="DIR", help="folder to write; it must be new")
@moved_option
@quiet_option
def command(
    run: Path,
    clients: tuple[str, ...],
    everyone: bool,
    global_model: bool,
    newcomer: bool,
    format: Any,
    moment: Any,
    which: Any,
    licence: str,
    out: Path,
    data_dir: Path | None,
    quiet: bool,
) -> None:
    """Write personal models of RUN: each a card and an ONNX program, or the weights of its network.

    One model is written to DIR itself, several to folders below it.
    """
    from ...exports.card import check_format
    from ...exports.run_models import Models
    from ...runs.query import Run

    trained = Run(run)
    if newcomer:
        _offer(Models(trained, data_dir), out, bool(clients) or everyone or global_model)
        return
    count = trained.manifest["experiment"]["clients"]
    numbers = list(range(count)) if everyone else [trained.number_of(name) for name in clients]
    if not numbers and not global_model:
        raise ConfigError("--client is missing: name a client, or choose --all or --global.")
    check_format(format)
    models = Models(trained, data_dir)
    names = folder_names([trained.names[c] if trained.names else f"client-{c}" for c in numbers])
    single = len(numbers) + global_model == 1
    targets = [(out if single else out / name, c) for name, c in zip(names, numbers, strict=True)]
    for folder, _ in targets:
        check_new_folder(folder)
    if global_model:
        models.global_model(which, licence).save(out if single else out / "global", format)
    for folder, c in targets:
        models.of(c, moment, which, licence).save(folder, format)
        if not quiet and not single:
            click.echo(f"wrote {folder}", err=True)
    click.echo(f"wrote {pluralize(len(targets) + global_model, 'model')} to {out}")


def _offer(models: Any, out: Path, more: bool) -> None:
    from ...sites.offers import write_offer

    if more:
        raise ConfigError("--newcomer is given with --client, --all or --global: export models by themselves.")
    click.echo(f"wrote {out}; tell the site its fingerprint: {write_offer(models, out)}")


def folder_names(names: list[str]) -> list[str]:
    """Clients' names as names of folders, each once, and short enough for any file system."""
    folders: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^\w.-]", "-", name).lstrip(".").encode()[:LONGEST].decode(errors="ignore") or "client"
        folders[next(n for k in range(1, 10**9) if (n := plain if k == 1 else f"{plain}-{k}") not in folders)] = None
    return [*folders]
