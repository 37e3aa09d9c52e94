"""``headwise audit``: what leaves a run's clients, and what attacks learn from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ...disk.jsontext import to_json
from ...errors import pluralize
from ...tasks.registry import kind_of
from ..options import INPUT_FOLDER, json_option, moved_option


@click.command(name="audit")
@click.argument("run", type=INPUT_FOLDER)
@click.option(
    "--clients", default=10, type=click.IntRange(1, 10**9), show_default=True, help="number of clients to attack"
)
@click.option("--seed", default=0, type=click.IntRange(0, 10**9), show_default=True, help="seed of clients and attacks")
@moved_option
@json_option
def command(run: Path, clients: int, seed: int, data_dir: Path | None, as_json: bool) -> None:
    """Show what leaves the clients of RUN, and how much more attacks on it learn than guessing would.

    Each attack gets the messages that the run's clients would send next; its result is compared with the truth.
    """
    from ...audit.auditing import audit

    result = audit(run, data_dir=data_dir, clients=clients, seed=seed)
    if as_json:
        click.echo(to_json(dataclasses.asdict(result)))
        return
    noise = "with" if result.private else "without"
    click.echo(f"{result.method} after {pluralize(result.t, 'round')}, {noise} noise on what leaves\n")
    click.echo(f"{'leaves a client':16}{'bytes a round':>14}  {'seen per client':17}what")
    for f in result.fields:
        click.echo(f"{f.name:16}{f.bytes:14,.0f}  {'yes' if f.per_client else 'no':17}{f.what}")
    if not kind_of(result.task).one_class:
        click.echo(f"\nOf a run on {result.task}, only membership is attacked: the other attacks need classes.")
    click.echo(f"\n{'attack':60}{'knowing':46}{'score':>7}{'guess':>7}{'cases':>7}  measure")
    for a in result.findings:
        click.echo(f"{a.attack:60}{a.knowing:46}{a.score:7.3f}{a.guess:7.3f}{a.cases:7}  {a.measure}")
