"""Runs several methods on several draws of a partition; the result is a table with mean and spread, and a summary."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk.files import write_bytes, write_json
from ..engine.events import Observer
from ..errors import ConfigError, RunError
from ..log.metrics import CLIENT_MEAN, extra_columns
from ..report.data import joined_table
from ..report.page import write_page
from ..report.results import Line, Setting
from ..report.tables import Table, markdown, results
from ..report.words import words
from ..runs.manifest import INPUTS
from ..runs.query import Run, title_of
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from . import registry
from .code import collect_code
from .fit import experiment_on
from .launch import data_folder, free_folder, run_or_resume
from .prepare import prepare

Watch = Callable[[str], AbstractContextManager[Iterable[Observer]]]
"""returns observers that display the run with this title"""
Track = Callable[[Path], Iterable[Observer]]
"""returns observers that also store the run in this folder elsewhere"""


@dataclass(frozen=True)
class Comparison:
    """All runs, a line per method in the given order."""

    out: Path
    setting: Setting

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def plain(self) -> dict[str, Any]:
        rows = [
            {
                "method": line.name,
                **{m: _figures(line, m) for m in line.measured_moments},
                "bytes_up_per_round": line.per_round("bytes_up"),
                "bytes_down_per_round": line.per_round("bytes_down"),
                "seconds_per_round": line.per_round("seconds"),
                "runs": line.summaries,
            }
            for line in self.setting.lines
        ]
        about = {"metric": self.setting.metric.name, "floor": self.setting.floor}
        return {"out": str(self.out), "draws": self.setting.draws, **about, "methods": rows, "words": self.words()}

    def table(self) -> Table:
        return results(self.setting.lines, self.setting.floor)

    def words(self) -> list[str]:
        return words(self.setting)


def compare(
    base: Any,
    methods: Sequence[str],
    draws: int = 1,
    out: str | Path | None = None,
    *,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
    track: Track = lambda folder: (),
    **settings: Any,
) -> Comparison:
    """Run every method on the same draws of the partition; called again with the same `out`, skip finished runs.

    `base` is an `Experiment`, or data as `fit` takes it: a mapping of clients, a DataFrame, a Dataset, or the path of a
    data.toml; `settings` are then those of `fit`. A draw has its own partition, or its own split where clients are
    natural, and `seeds` seeds of its own.

    >>> compare(frame, ["fedavg", "fedah"], client="hospital", target="ill", rounds=20)  # doctest: +SKIP
    """
    if isinstance(base, Experiment):
        if settings:
            raise ConfigError(f"{next(iter(settings))} is given beside an Experiment: set it there.")
        folder = Path(out) if out else free_folder(f"compare-{base.data.name}")
    else:
        folder = Path(out) if out else free_folder("compare-own")
        base = experiment_on(base, folder / INPUTS, settings)
    cells = _cells(base, methods, draws, seeds)
    for _, experiment, _ in cells[: len(methods)] if len(base.model) > 1 else ():
        prepare(experiment, data_folder(data_dir))  # refuses methods that need one network, before any run
    done: dict[str, list[Run]] = {}
    for method, experiment, name in cells:
        others = track(folder / name)
        with watch(f"{method}, draw {experiment.data_seed}, seed {experiment.seed}") as observers:
            run = run_or_resume(experiment, folder / name, data_dir=data_dir, observers=[*observers, *others])
        if not run.complete:
            raise RunError(f"{run.path} ended early ({run.ended}): compare again into {folder} to continue.")
        done.setdefault(method, []).append(run)
    lines = tuple(Line(m, tuple(runs)) for m, runs in done.items())
    first = lines[0].runs[0]
    comparison = Comparison(folder, Setting(title_of(first.manifest["experiment"], first.metric), lines))
    write_json(folder / "comparison.json", comparison.plain())
    tables = [comparison.table(), *([joined] if (joined := joined_table(comparison.setting)) else [])]
    write_bytes(folder / "table.md", "\n".join(map(markdown, tables)).encode())
    write_page([comparison.setting], comparison.report)
    return comparison


def _cells(base: Experiment, methods: Sequence[str], draws: int, seeds: int) -> list[tuple[str, Experiment, str]]:
    """Each method on each draw and seed, and the name of its folder; raises before any run if a method can't be made.

    Seeds move with the draw, so that no two draws share an initial model.
    """
    labels = {re.sub(r"[^\w.=-]+", "-", m): m for m in methods}
    if len(labels) < len(methods) or not labels:
        raise ConfigError(f"methods is {', '.join(methods)!r}, but must name at least one method, each once.")
    registry.make("method", base.method)  # replaced below, but still checked
    cells: list[tuple[str, Experiment, str]] = []
    for k in range(draws * seeds):
        draw = base.data_seed + k // seeds
        seed = base.seed + k
        for label, method in labels.items():
            choice = registry.resolve("method", Choice.parse(method, "method"))
            experiment = dataclasses.replace(base, method=choice, seed=seed, data_seed=draw)
            code = collect_code(experiment).label  # so that an edited file gets folders of its own
            cells.append((method, experiment, f"{label}-{code + '-' if code else ''}d{draw}-s{seed}"))
    return cells


def _figures(line: Line, moment: str) -> dict[str, float]:
    others = (metric.name for metric in extra_columns(line.metric, line.runs[0].listed_metrics))
    whats = ("last", "best", "last_ten", CLIENT_MEAN.name, *others)
    known = {w: line.mean(w, moment) for w in whats if line.values(w, moment)}
    return known | {"std": line.spread("last", moment)}
