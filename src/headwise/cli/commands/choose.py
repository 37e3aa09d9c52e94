"""``headwise choose`` and ``tune``: which method for this data, and with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...disk.jsontext import to_json
from ...errors import ConfigError, pluralize
from ..options import INPUT_FILE, experiment_options, literal, read_options
from ..output import table_text


@click.command(name="choose")
@click.argument("config", type=INPUT_FILE, required=False, metavar="[CONFIG.toml]")
@click.option("--budget", default="10m", show_default=True, help="time to spend, such as 90s, 30m or 2h")
@click.option(
    "--methods", default="", help="methods to try, separated by commas  [a portfolio, one of each family first]"
)
@click.option("--draws", default="5", show_default=True, help="most draws of the partition that decide")
@click.option(
    "--trials", default="20", show_default=True, help="most settings to try for each of the best methods; 0: none"
)
@click.option("--only-sums", is_flag=True, help="only methods whose server needs only sums, which can be masked")
@experiment_options("new, or the one to continue", refused=("method", "track"))
def command(
    config: Path | None, budget: str, methods: str, draws: str, trials: str, only_sums: bool, **options: Any
) -> None:
    """Find out which method suits your data, and whether learning together pays at all.

    Compares local training, FedAvg, fine-tuned FedAvg and a portfolio of methods on validation samples. Use the same
    --out again to continue, with a larger --budget if it was spent.
    """
    given = read_options(options)
    if given.tracked:
        raise ConfigError("--track is given, but choose makes many runs: track a run of the method it recommends.")
    if given.flags["method"] is not None:
        raise ConfigError("--method is given, but choose tries several: name them in --methods.")
    base = given.experiment(config)

    from ...app.choose import choose

    chosen = choose(
        base,
        budget=budget,
        methods=methods,
        draws=literal(draws),
        trials=literal(trials),
        only_sums=only_sums,
        out=given.out,
        data_dir=given.data_dir,
        watch=given.watch,
    )
    if given.as_json:
        click.echo(to_json(chosen.to_plain()))
        return
    click.echo("\n".join(chosen.words()))
    click.echo(table_text(*chosen.table(), title="What decided", numbers_from=1, width=140))
    click.echo(f"Page: {chosen.report}")
    click.echo(f"Continue with: headwise run {chosen.out / 'best.toml'}")


@click.command(name="tune")
@click.argument("config", type=INPUT_FILE, required=False, metavar="[CONFIG.toml]")
@click.option("--trials", help="how many settings to try  [20 without a budget]")
@click.option("--budget", help="time to spend, such as 90s, 30m or 2h")
@click.option(
    "--space",
    multiple=True,
    metavar="KEY=RANGE",
    help="search this too, or a default in another range: train.lr=log:1e-3..1, train.optimizer=sgd,adam",
)
@experiment_options("new, or the one to continue", refused=("track",))
def tune(config: Path | None, trials: str | None, budget: str | None, space: tuple[str, ...], **options: Any) -> None:
    """Search the learning rate and the numbers among the method's own options on validation samples.

    Use the same --out again to continue a search that was interrupted. Needs pip install 'headwise[tune]'.
    """
    given = read_options(options)
    if given.tracked:
        raise ConfigError(
            "--track is given, but tune writes its own log of trials: track a run with the best settings."
        )
    base = given.experiment(config)

    from ...app import tune as tuning

    result = tuning.tune(
        base,
        trials=None if trials is None else literal(trials),
        budget=budget,
        space=space,
        out=given.out,
        data_dir=given.data_dir,
        watch=given.watch,
    )
    if given.as_json:
        click.echo(to_json(result.to_plain()))
        return
    head, rows = result.table()
    title = pluralize(len(rows), "trial") + (f", the best {tuning.SHOWN}" if len(rows) > tuning.SHOWN else "")
    click.echo(table_text(head, rows[: tuning.SHOWN], title=title, numbers_from=1, width=120))
    if len(rows) > tuning.SHOWN:
        click.echo(f"{len(rows) - tuning.SHOWN} more are in {result.out / 'tuning.md'}.")
    click.echo("\n".join(result.words()))
    click.echo(f"The best settings are in {result.out / 'best.toml'}: headwise run {result.out / 'best.toml'}")
