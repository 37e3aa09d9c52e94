"""Shows the progress of a run on stderr: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..engine.events import ClientDone, Event, Observer, RoundEnded, RoundStarted, RunStarted, StartMeasured
from ..log.metrics import ACCURACY
from ..log.schema import MOMENTS, figures, was_evaluated


@contextmanager
def show_progress(title: str, *, quiet: bool) -> Iterator[list[Observer]]:
    """Yields the observers that show a run, for as long as it lasts."""
    if quiet:
        yield []
    elif sys.stderr.isatty():
        watch = Watch(title)
        with Live(console=Console(stderr=True), get_renderable=watch.picture, refresh_per_second=8, transient=True):
            yield [watch.see]
    else:
        yield [Watch(title).line]


class Watch:
    def __init__(self, title: str) -> None:
        self.title = title
        self.rounds = 1
        self.t = self.first = 0
        self.chosen = self.done = self.samples = self.sent = self.failed = 0
        self.begun = time.monotonic()
        self.row: dict[str, Any] = {}
        self.metric = ACCURACY

    def see(self, event: Event) -> None:
        match event:
            case RunStarted(rounds, _, start, metric):
                self.metric = metric
                self.rounds = rounds
                self.begun = time.monotonic()
                self.t = self.first = start
            case RoundStarted(_, clients):
                self.chosen = len(clients)
                self.done = 0
            case ClientDone(kind="fit", samples=samples):
                self.done += 1
                self.samples += samples
            case RoundEnded(row) | StartMeasured(row):
                self.t = row["round"]
                self.row = {**self.row, **row}
                self.sent += row["bytes_up"] + row["bytes_down"]
                self.failed += sum(map(len, row.get("failed", {}).values()))
            case _:
                pass

    def line(self, event: Event) -> None:
        """Like `see`, and prints a line after each evaluation."""
        self.see(event)
        if isinstance(event, (RoundEnded, StartMeasured)) and was_evaluated(event.row):
            click.echo(f"{self.title}: {', '.join(f'{k} {v}' for k, v in self.facts())}", err=True)

    def facts(self) -> list[tuple[str, str]]:
        spent = max(time.monotonic() - self.begun, 1e-9)
        left = spent / max(self.t - self.first, 1) * (self.rounds - self.t)
        measured = {m: values for m in MOMENTS if (values := figures(self.row, m, self.metric))}
        moments = [self._format_scores(m, values) for m, values in measured.items()]
        return [
            ("round", f"{self.t}/{self.rounds}"),
            *moments,
            ("sent", f"{self.sent / 2**20:,.1f} MB"),
            ("samples/s", f"{self.samples / spent:,.0f}"),
            *([("failed", str(self.failed))] if self.failed else []),
            *([("left", _format_clock(left))] if self.t > self.first else []),
        ]

    def _format_scores(self, moment: str, values: Mapping[str, Any]) -> tuple[str, str]:
        """On validation samples where there are any: who watches must not choose by test samples."""
        if (judged := values.get(self.metric.validation)) is not None:
            return f"{moment} (validation)", f"{judged:.4f}"
        return moment, f"{values[self.metric.name]:.4f}"

    def picture(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        now = f"{self.done} of {self.chosen} clients in this round"
        grid.add_row(Text(self.title, "bold"), ProgressBar(self.rounds, self.t, width=30), now)
        figures = Text("  ").join(Text.assemble((k, "dim"), f" {v}") for k, v in self.facts())
        outer = Table.grid()
        outer.add_row(grid)
        outer.add_row(figures)
        return outer


def _format_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
