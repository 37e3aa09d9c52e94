"""``headwise data``: describe and check data of one's own, and see who would hold what before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...disk.jsontext import to_json
from ...settings.overrides import read_toml
from ..deal import deal
from ..options import data_option, experiment_of, flags, json_option, set_option
from ..own import check, init, is_description, show_targets
from ..paths import INPUT_FILE, OUTPUT_FILE

MOST_CLIENTS, MOST_CLASSES = 40, 20
"""in a table; more don't fit a terminal"""


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
    if config is not None and is_description(read_toml(config)):
        config, given = None, {**given, "data": str(config)}
    experiment = experiment_of(config, changes, given)
    from ...app.launch import data_folder
    from ...app.prepare import divided
    from ...disk.files import write_bytes
    from ...report.partition import partition_words, render_partition
    from ...runs.titles import title_of
    from ...settings.fields import dump

    found = divided(experiment, data_folder(data_dir))
    if found.dataset.task != "classification":
        show_targets(found, as_json)
        return
    summary, counts, classes = dump(found.summary), found.histograms(), list(found.dataset.classes)
    chosen = {k: getattr(experiment, k).resolved(k).plain() for k in ("data", "partition")}
    title = title_of({**chosen, "clients": len(found)})
    if out is not None:
        write_bytes(out, render_partition(title, summary, counts, classes, found.names).encode())
    if as_json:
        names = {"client_names": list(found.names)} if found.names else {}
        click.echo(to_json({"title": title, **summary, "class_names": classes, "samples": counts, **names}))
        return
    click.echo(title)
    _print(counts, classes, found.names)
    click.echo("\n".join(partition_words(summary)))
    if out is not None:
        click.echo(f"The picture is in {out}.")


def _print(counts: dict[str, list[list[int]]], classes: list[str], names: Sequence[str]) -> None:
    """A table where it fits a terminal."""
    from ...report.partition import partition_table
    from ..tables import table_text

    head, rows = partition_table(counts, classes, names)
    if len(rows) > MOST_CLIENTS or len(classes) > MOST_CLASSES:
        click.echo(f"{len(rows)} clients and {len(classes)} classes are too many for a table here: -o makes a page.")
        return
    click.echo(table_text(head, rows, numbers_from=0, width=160))


command.add_command(init)
command.add_command(check)
command.add_command(deal)
