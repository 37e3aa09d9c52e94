"""Groups runs: those that differ only in seed and draw are one line, lines on the same draws one setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ..disk.jsontext import leaves, to_json
from ..errors import RunError, pluralize
from ..log.metrics import Metric
from ..log.schema import JUDGED, Round
from ..runs.comparison import COMPARISON, read_comparison
from ..runs.manifest import hash_code, with_relative_paths
from ..runs.query import Run, client_label, find_runs, title_of
from ..stats import Cells

OWN = ("pre", "stale")
"""the moments that measure the clients' own models"""
APART = ("seed", "data_seed", "engine")
"""settings that may differ between the runs of one line"""
FEDERATION = ("data", "partition", "split", "fraction", "clients", "task", "without", "target_range", "origin")
"""settings that decide, with data_seed, which client has which samples"""


@dataclass(frozen=True)
class Line:
    """One method's runs, one per draw of the partition and seed."""

    name: str
    runs: tuple[Run, ...]

    @cached_property
    def by_cell(self) -> dict[tuple[int, int], Run]:
        """Its runs by draw and seed."""
        return {cell_of(run): run for run in self.runs}

    @property
    def metric(self) -> Metric:
        """The main metric of its runs."""
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
        """One value for each run that measured it."""
        values = [s[self.metric.name].get(moment, {}).get(what) for s in self.summaries]
        return [value for value in values if value is not None]

    @cached_property
    def measured_moments(self) -> list[str]:
        """The measured moments at which its clients' models can be judged."""
        return [m for m in JUDGED if self.values("last", m)]

    def mean(self, what: str = "last", moment: str = "pre") -> float:
        return fmean(self.values(what, moment))

    def spread(self, what: str = "last", moment: str = "pre") -> float:
        """The standard deviation over its runs; 0 for one run."""
        values = self.values(what, moment)
        return stdev(values) if len(values) > 1 else 0.0

    def per_round(self, what: str) -> float:
        """Bytes or seconds per round, over all its clients."""
        return fmean(s[what] / max(s["rounds"], 1) for s in self.summaries)

    @property
    def moment(self) -> str:
        """The moment that ranks it: pre, else stale, else global. The same for all methods, whatever they score."""
        return self.measured_moments[0]

    @property
    def score(self) -> float:
        """The method's metric at that moment."""
        return self.mean("last", self.moment)


@dataclass(frozen=True)
class Setting:
    """Lines that share draws of a partition and a metric, and so can be compared."""

    title: str
    lines: tuple[Line, ...]

    @property
    def run(self) -> Run:
        """The first run, for what all of them share."""
        return self.lines[0].runs[0]

    @property
    def metric(self) -> Metric:
        return self.run.metric

    @cached_property
    def floor(self) -> float | None:
        """The mean over the draws."""
        first = {draw: run.floor for line in self.lines for (draw, _), run in reversed(line.by_cell.items())}
        floors = [floor for floor in first.values() if floor is not None]
        return fmean(floors) if floors else None

    @property
    def draws(self) -> int:
        """How many partitions there are, or, where clients are natural, splits of their samples."""
        return 1 if self.is_one_division else len({draw for line in self.lines for draw, _ in line.by_cell})

    @cached_property
    def is_one_division(self) -> bool:
        """Whether its draws differ only in their seeds, as where files say which samples are for testing."""
        hashes = {run.manifest["partition"]["hash"] for line in self.lines for run in line.runs}
        return len(hashes) == 1 < len({draw for line in self.lines for draw, _ in line.by_cell})

    @property
    def repeats(self) -> str:
        """The number of draws or seeds of a line, in words."""
        seeds = max(len(line.runs) for line in self.lines)
        if self.is_one_division:
            return f"{pluralize(seeds, 'seed')} of one division of the data"
        return pluralize(self.draws, "draw") if self.draws > 1 else f"{pluralize(seeds, 'seed')}, one partition"

    @property
    def has_same_clients(self) -> bool:
        """Whether a client's number means the same client in all draws."""
        return self.draws == 1 or self.run.manifest["experiment"]["partition"]["name"] == "natural"

    def cells(self, lines: Sequence[Line], part: str = "test") -> Cells | None:
        """Their scores on the draws and seeds that all of them have; None if there are none."""
        common = [cell for cell in lines[0].by_cell if all(cell in line.by_cell for line in lines)]
        drawn = [*dict.fromkeys(draw for draw, _ in common)]
        draws = [common] if self.is_one_division else [[cell for cell in common if cell[0] == draw] for draw in drawn]
        count = min(map(len, draws), default=0)
        if not count:
            return None
        clients = self.run.manifest["experiment"]["clients"]
        scores = {line.name: np.full((len(draws), count, clients), np.nan) for line in lines}
        weights = np.ones((len(draws), clients))
        for d, seeds in enumerate(draws):
            for s, cell in enumerate(seeds[:count]):
                for line in lines:
                    run = line.by_cell[cell]
                    with explain_damage(run):
                        values = run.last_scores(part).get(line.moment, {})
                        samples = [sum(row) for row in run.partition[part]]
                        scores[line.name][d, s, [*values]] = [*values.values()]
                        weights[d] = samples or weights[d]  # sites may not share them
        main = self.metric
        return Cells(scores, weights, self.has_same_clients, main.aggregate, main.better == "up")

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

    @property
    def table_lines(self) -> list[Line]:
        """All lines, best first; those without a score, for example after a crash, come last."""
        return [*self.ranking, *(line for line in self.lines if not line.measured_moments)]

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


def collect(
    folders: Iterable[Path], damaged: list[str] | None = None, left_out: list[str] | None = None
) -> list[Setting]:
    """The settings of all runs in and below these folders.

    With `damaged`, a run that can't be read is skipped and its error appended there, as long as there are other runs.
    With `left_out`, folders of comparisons give only the runs of the last comparison, and sentences about the others
    are appended there.
    """
    if left_out is None:
        all_runs = [run for folder in folders for run in _runs(folder)]
    else:
        all_runs = [run for folder in folders for run in select_runs(folder, left_out)]
    names = _read_names(all_runs)
    problems: dict[str, list[Run]] = {}
    for run in {run.path.resolve(): run for run in all_runs}.values():
        try:
            with explain_damage(run):
                _check(run)
                problems.setdefault(_federation(run), []).append(run)
        except RunError as error:
            if damaged is None or len(all_runs) == 1:
                raise
            damaged.append(str(error))
    if damaged and not problems:
        raise RunError(f"none of these runs can be read: {damaged[0]}")
    settings: list[Setting] = []
    for group in (group for runs in problems.values() for group in _same_data(runs)):
        with explain_damage(group[0]):
            title = title_of(group[0].manifest["experiment"], group[0].metric)
            settings.append(Setting(title, tuple(_lines(group, names))))
    return settings


def select_runs(folder: Path, left_out: list[str]) -> list[Run]:
    """The runs in and below a folder; where there is a comparison.json, those that it lists and that are complete.

    Appends a sentence to `left_out` for each comparison that has other runs beside it, or lacks some of its own.
    """
    by_home: dict[Path | None, list[Run]] = {}
    for run in _runs(folder):
        homes = (home for home in run.path.parents if home == folder or folder in home.parents)
        home = next((home for home in homes if (home / COMPARISON).is_file()), None)
        by_home.setdefault(home, []).append(run)
    selected: list[Run] = []
    sentences: list[str] = []
    for home, runs in by_home.items():
        selected += _select_listed(home, runs, sentences) if home else runs
    if not selected:
        raise RunError(f"{folder} holds no complete run of its last comparison: {' '.join(sentences)}")
    left_out += sentences
    return selected


def _select_listed(home: Path, runs: Sequence[Run], left_out: list[str]) -> list[Run]:
    listed = {path for row in read_comparison(home) for path in row.runs}
    own = [run for run in runs if run.path in listed]
    selected = [run for run in own if _state_of(run) != "unfinished"]
    codes: dict[str, set[str]] = {}
    for run in (run for run in selected if _state_of(run) == "complete"):
        codes.setdefault(_key(run), set()).add(_code_of(run))
    paths = {run.path for run in selected}
    reasons = Counter(_explain(run, codes) for run in runs if run.path not in paths)
    if reasons:
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        left_out.append(f"{home} has {pluralize(reasons.total(), 'run')} outside its last comparison: {counts}.")
    if gone := len(listed) - len(own):
        left_out.append(f"{home} no longer has {pluralize(gone, 'run')} of its last comparison.")
    return selected


def _state_of(run: Run) -> str:
    try:
        return "complete" if run.complete else "unfinished"
    except RunError:
        return "damaged"


def _explain(run: Run, codes: dict[str, set[str]]) -> str:
    """Why a run is not part of a comparison, whose runs have these codes by their settings."""
    if (state := _state_of(run)) != "complete":
        return state
    known = codes.get(_key(run))
    return "with other code" if known and _code_of(run) not in known else "of other methods, settings or draws"


def cell_of(run: Run) -> tuple[int, int]:
    """The draw of its partition, and its seed."""
    experiment = run.manifest["experiment"]
    return experiment["data_seed"], experiment["seed"]


def _federation(run: Run) -> str:
    """Equal for runs whose clients are draws of the same kind, judged by the same metric."""
    experiment = _settings(run)
    return to_json([run.metric.name, *(experiment.get(name) for name in FEDERATION)], sort_keys=True)


def _same_data(runs: Sequence[Run]) -> list[list[Run]]:
    """Grouped so that a draw always gives the same clients: runs before and after the data changed stay apart."""
    hashes = {(cell_of(run)[0], run.manifest["partition"]["hash"]) for run in runs}
    if len(hashes) == len({draw for draw, _ in hashes}):
        return [[*runs]]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.manifest["partition"]["hash"], []).append(run)
    return [*groups.values()]


def _check(run: Run) -> None:
    """Read everything a report needs from a run, so that it fails here and not halfway through a report."""
    run.summary()
    run.last_scores()
    title_of(run.manifest["experiment"], run.metric)
    _ = run.ended, run.privacy, run.names, run.floors, run.diagnostics, run.sites


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


def _lines(runs: Sequence[Run], names: dict[Path, str]) -> list[Line]:
    """One line for all runs that differ only in draw and seed; of two with the same ones, the later one counts.

    Runs of an edited file are lines of their own, whatever their settings.
    """
    groups: dict[tuple[str, str, str], dict[tuple[int, int], Run]] = {}
    for run in runs:
        groups.setdefault((names[run.path], _key(run), _code_of(run)), {})[cell_of(run)] = run
    every = [tuple(by_cell[cell] for cell in sorted(by_cell)) for by_cell in groups.values()]
    rows = _name_rows([group[0] for group in every], [name for name, _, _ in groups])
    return [Line(name, group) for name, group in sorted(zip(rows, every, strict=True), key=lambda pair: pair[0])]


def _key(run: Run) -> str:
    """Equal for runs that differ only in draw, seed and code."""
    return to_json({k: v for k, v in _settings(run).items() if k not in APART}, sort_keys=True)


def _code_of(run: Run) -> str:
    """The hash that `compare` puts into the names of folders; several if the run continued with new code."""
    entries = run.manifest.get("code") or [{"numerics": 1, "packages": {}, "files": {}}]
    return "+".join(map(hash_code, entries))


def _settings(run: Run) -> dict[str, Any]:
    """Without the location of the run's folder, which is all that differs between two runs on the same objects."""
    return with_relative_paths(run.manifest["experiment"], run.path)


def _name_rows(runs: Sequence[Run], given: Sequence[str]) -> list[str]:
    """Each line's method, and the settings, or the code, that tell it apart from other lines of that method."""
    flat = [_flat(run) for run in runs]
    names: list[str] = []
    for own, name in zip(flat, given, strict=True):
        rivals = [other for other, same in zip(flat, given, strict=True) if same == name]
        differ = [k for k in own if any(r.get(k) != own[k] for r in rivals)]
        names.append(name_row(name, [f"{k.removeprefix('method.')}={own[k]}" for k in differ]))
    return names


def name_row(method: str, settings: Iterable[str]) -> str:
    """A method's row, with the settings that are its own: ``fedavg · lr=0.1``."""
    return " · ".join([method, *settings])


def _read_names(runs: Iterable[Run]) -> dict[Path, str]:
    """The name of each run's method: as typed for the comparison that lists the run, or else its name or file."""
    every = [*runs]
    homes = {home for run in every for home in (run.path.parent, run.path.parent.parent)}  # a grid has folders between
    names = {path: row.method for home in homes for row in read_comparison(home) for path in row.runs}
    return {run.path: names.get(run.path) or _name_of_method(run) for run in every}


def _name_of_method(run: Run) -> str:
    try:
        method = run.method
    except RunError:  # `collect` says so
        return ""
    return Path(method).name if method.endswith(".py") else method


def _flat(run: Run) -> dict[str, Any]:
    settings = {name: value for name, value in leaves(_settings(run)) if not {*APART} & {*name.split(".")}}
    return {**settings, "code": _code_of(run)}
