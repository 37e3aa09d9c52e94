"""Groups runs: those that differ only in their seed are one line, lines on the same partition one setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..disk.files import read_json
from ..disk.jsontext import leaves, to_json
from ..errors import RunError
from ..log.metrics import Metric
from ..log.schema import Round
from ..runs.manifest import portable
from ..runs.query import Run, client_label, find_runs, title_of

OWN = ("pre", "stale")
"""the moments that measure the clients' own models"""
APART = ("seed", "engine")
"""settings that may differ between the runs of one line"""


@dataclass(frozen=True)
class Line:
    """One method's runs, one per seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def metric(self) -> Metric:
        """By which its runs are judged."""
        return self.runs[0].metric

    @cached_property
    def rows(self) -> list[list[Round]]:
        return [run.rounds for run in self.runs]

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        summaries: list[dict[str, Any]] = []
        for run in self.runs:
            with explain_damage(run):
                summaries.append(run.summary())
        return summaries

    def values(self, what: str, moment: str) -> list[float]:
        """One value for each seed that measured it."""
        values = [s[self.metric.name].get(moment, {}).get(what) for s in self.summaries]
        return [value for value in values if value is not None]

    @cached_property
    def measured_moments(self) -> list[str]:
        """The measured moments at which its clients' models can be judged."""
        return [m for m in (*OWN, "global") if self.values("last", m)]

    def mean(self, what: str = "last", moment: str = "pre") -> float:
        return fmean(self.values(what, moment))

    def spread(self, what: str = "last", moment: str = "pre") -> float:
        """The standard deviation over the seeds; 0 for one seed."""
        values = self.values(what, moment)
        return stdev(values) if len(values) > 1 else 0.0

    def per_round(self, what: str) -> float:
        """Bytes or seconds per round, over all its clients."""
        return fmean(s[what] / max(s["rounds"], 1) for s in self.summaries)

    @property
    def moment(self) -> str:
        """By which it is ranked: pre, else stale, else global. The same for all methods, whatever they score."""
        return self.measured_moments[0]

    @property
    def score(self) -> float:
        """The method's metric at that moment."""
        return self.mean("last", self.moment)

    @property
    def noise(self) -> float:
        """The spread of that score over the seeds."""
        return self.spread("last", self.moment)


@dataclass(frozen=True)
class Setting:
    """Lines that share a partition and a metric, and so can be compared."""

    title: str
    lines: tuple[Line, ...]

    @property
    def run(self) -> Run:
        """Any run, for what all of them share."""
        return self.lines[0].runs[0]

    @property
    def metric(self) -> Metric:
        return self.run.metric

    @property
    def floor(self) -> float | None:
        return self.run.floor

    @property
    def seeds(self) -> int:
        """The largest number of seeds of any line."""
        return max(len(line.runs) for line in self.lines)

    @property
    def local_training(self) -> Line | None:
        """The line of local training (`standalone`), if there is one."""
        return next((line for line in self.ranking if line.runs[0].method == "standalone"), None)

    @cached_property
    def ranking(self) -> list[Line]:
        """The lines with a score, best first."""
        return sorted(
            (line for line in self.lines if line.measured_moments), key=lambda line: self.metric.gain(0.0, line.score)
        )

    @cached_property
    def partition(self) -> dict[str, Any]:
        return self.run.partition

    def label_of(self, c: int) -> str:
        """A client's number, and its name if it has one."""
        return client_label(c, self.run.names)

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes; None if only sites know them."""
        return self.partition.get("classes")


def collect(folders: Iterable[Path], damaged: list[str] | None = None) -> list[Setting]:
    """The settings of all runs in and below these folders.

    With `damaged`, a run that can't be read is skipped and its error appended there, as long as there are other runs.
    """
    all_runs = [run for folder in folders for run in _runs(folder)]
    problems: dict[tuple[str, str], list[Run]] = {}
    for run in {run.path.resolve(): run for run in all_runs}.values():
        try:
            with explain_damage(run):
                _check(run)
                problems.setdefault((run.manifest["partition"]["hash"], run.metric.name), []).append(run)
        except RunError as error:
            if damaged is None or len(all_runs) == 1:
                raise
            damaged.append(str(error))
    if damaged and not problems:
        raise RunError(f"none of these runs can be read: {damaged[0]}")
    settings: list[Setting] = []
    for runs in problems.values():
        with explain_damage(runs[0]):
            settings.append(Setting(title_of(runs[0].manifest["experiment"], runs[0].metric), tuple(_lines(runs))))
    return settings


def _check(run: Run) -> None:
    """Read everything a report needs from a run, so that it fails here and not halfway through a report."""
    run.summary()
    run.last_scores()
    title_of(run.manifest["experiment"], run.metric)
    _ = run.ended, run.privacy, run.names, run.floors, run.diagnostics, run.sites, _given_name(run)


@contextmanager
def explain_damage(run: Run) -> Iterator[None]:
    """Turn errors about missing or malformed entries into one sentence about the run."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RunError(f"{run.path} is damaged: its files lack something a report needs ({error!r}).") from error


def _runs(folder: Path) -> list[Run]:
    if not folder.is_dir():
        raise RunError(f"{folder} is not the folder of a run: there is no such folder.")
    runs = find_runs(folder)
    if not runs:
        raise RunError(f"{folder} holds no runs: there is no manifest.json in it or below it.")
    return runs


def _lines(runs: Sequence[Run]) -> list[Line]:
    """One line for all runs that differ only in their seed; of two with the same seed, the later one counts."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        e = _settings(run)
        key = to_json({k: v for k, v in e.items() if k not in APART}, sort_keys=True)
        groups.setdefault(key, {})[e["seed"]] = run
    every = [tuple(by_seed[s] for s in sorted(by_seed)) for by_seed in groups.values()]
    names = _names([group[0] for group in every])
    return [Line(name, group) for name, group in sorted(zip(names, every, strict=True), key=lambda pair: pair[0])]


def _settings(run: Run) -> dict[str, Any]:
    """Without where the run's folder is: two runs on the same objects differ in nothing else."""
    return portable(run.manifest["experiment"], run.path)


def _names(runs: Sequence[Run]) -> list[str]:
    """Each line's method, and the settings that tell it apart from other lines of that method."""
    given = [_given_name(run) for run in runs]
    names: list[str] = []
    for run, name in zip(runs, given, strict=True):
        own = _flat(_settings(run))
        rivals = [_flat(_settings(r)) for r, other in zip(runs, given, strict=True) if other == name]
        differ = [k for k in own if any(r.get(k) != own[k] for r in rivals)]
        names.append(" · ".join([name, *(f"{k.removeprefix('method.')}={own[k]}" for k in differ)]))
    return names


def _given_name(run: Run) -> str:
    """The method's name in the comparison that this run is part of; else its own, or that of its file."""
    path, own = run.path.parent / "comparison.json", run.method
    named: dict[str, str] = {}
    if path.exists():
        with explain_damage(run):
            named = {Path(r["run"]).name: m["method"] for m in read_json(path)["methods"] for r in m["runs"]}
    return named.get(run.path.name, Path(own).stem if own.endswith(".py") else own)


def _flat(experiment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in leaves(experiment) if not {*APART} & {*name.split(".")}}
