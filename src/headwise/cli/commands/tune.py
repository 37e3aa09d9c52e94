"""``headwise tune``: search settings on validation samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...disk.jsontext import to_json
from ...errors import ConfigError
from ...settings.fields import Count, convert
from ..options import INPUT_FILE, experiment_options, literal, read_options
from ..output import table_text


@click.command(name="tune")
@click.argument("config", type=INPUT_FILE, required=False, metavar="[CONFIG.toml]")
@click.option("--trials", help="how many settings to try  [20 without a budget]")
@click.option("--budget", help="time to spend, such as 90s, 30m or 2h")
@click.option(
    "--space", multiple=True, metavar="KEY=RANGE", help="what to search: train.lr=log:1e-3..1, train.optimizer=sgd,adam"
)
@experiment_options("new, or that of the same search to continue")
def command(
    config: Path | None, trials: str | None, budget: str | None, space: tuple[str, ...], **options: Any
) -> None:
    """Search the learning rate and the method's own options on validation samples.

    Use the same --out again to continue a search that was interrupted. Needs pip install 'headwise[tune]'.
    """
    given = read_options(options)
    if given.tracked:
        raise ConfigError(
            "--track is given, but tune writes its own log of trials: track a run with the best settings."
        )
    count = None if trials is None else convert(literal(trials), Count, "trials")
    base = given.experiment(config)

    from ...app.tune import tune

    result = tune(
        base,
        trials=count,
        budget=budget,
        space=space,
        out=given.out,
        data_dir=given.data_dir,
        watch=given.watch,
    )
    if given.as_json:
        click.echo(to_json(result.plain()))
        return
    click.echo(table_text(*result.table(), title=f"{len(result.trials)} trials", numbers_from=1, width=120))
    click.echo("\n".join(result.words()))
    click.echo(f"The best settings are in {result.out / 'best.toml'}: headwise run {result.out / 'best.toml'}")
