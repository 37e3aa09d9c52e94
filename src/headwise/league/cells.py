"""The federations of a league, and its cells: a method with its default or tuned settings, on one draw of a federation.

A federation is a file, in a folder per version, or a user's own.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from .. import __version__
from ..app.code import RunCode, collect_code
from ..app.launch import run_to_end
from ..app.registry import find, make, resolve_all
from ..app.tune import tune
from ..data.sources.own import Own
from ..disk.files import (
    digest,
    from_json,
    lock_folder,
    make_folder,
    read_bytes,
    read_json,
    without_flushing,
    write_json,
)
from ..disk.jsontext import csv_cell, to_json
from ..disk.paths import folder_name
from ..errors import METHOD_ERRORS, ConfigError, NoScoreError, RunError, nearest
from ..log.metrics import Metric
from ..runs.manifest import describe_machine
from ..runs.query import Run
from ..settings.experiment import Experiment, experiment_from, read_toml, with_settings

HOME = Path(__file__).parent
FIELDS = ("title", "kind", "experiment")
GIVEN = ("method", "seed", "data_seed", "engine")
"""settings that a cell decides, not the federation"""
EVALUATE = {"every": 10**6, "moments": ["pre"], "start": False, "keep": []}
Kind = Literal["default", "tuned"]
KINDS: tuple[Kind, ...] = ("default", "tuned")
TUNING_DRAW = 1000
"""settings are tuned on validation samples of this draw, which is not one of those that count"""
TRIALS = 10
JOINED = (0, 1, 5)
"""epochs after which new clients are measured"""


@dataclass(frozen=True)
class Federation:
    """A small federation with its training settings, on which all methods are compared."""

    name: str
    title: str
    kind: str
    """how its clients differ, in a few words"""
    values: dict[str, Any]
    """an experiment, without method and seeds"""
    source: str
    """as given on the command line: its name, or the path of its file"""

    def experiment(self, method: str, draw: int) -> Experiment:
        """One cell: another draw also has another seed."""
        evaluate = {**EVALUATE, **self.values.get("evaluate", {})}
        values = {**self.values, "evaluate": evaluate, "engine": {"workers": 1}}
        return experiment_from({**values, "method": method, "seed": draw, "data_seed": draw})


def list_versions() -> list[str]:
    return sorted(path.name for path in HOME.glob("v*") if path.is_dir())


def list_federations(version: str) -> list[str]:
    return sorted(path.stem for path in (HOME / version).glob("*.toml"))


def find_federations(version: str, names: Sequence[str]) -> list[Federation]:
    """Those with these names or in these files; all of the version if none is given."""
    if version not in list_versions():
        raise ConfigError(f"version is {version!r}: {nearest(version, list_versions())}")
    known = list_federations(version)
    federations: list[Federation] = []
    for name in names or known:
        if not name.endswith(".toml") and name not in known:
            raise ConfigError(f"federation is {name!r}, which is not a .toml file: {nearest(name, known)}")
        path = Path(name) if name.endswith(".toml") else HOME / version / f"{name}.toml"
        federations.append(read_federation(path, name))
    if len({federation.name for federation in federations}) < len(federations):
        raise ConfigError("two federations have the same name: each file needs a name of its own.")
    return federations


def read_federation(path: Path, source: str) -> Federation:
    values = read_toml(path)
    if unknown := [k for k in values if k not in FIELDS]:
        raise ConfigError(f"{path}: {unknown[0]} is not part of a federation: {nearest(unknown[0], FIELDS)}")
    if missing := [k for k in FIELDS if k not in values]:
        raise ConfigError(f"{path}: {missing[0]} is missing; it must have a title, a kind and a table [experiment].")
    if wrong := [k for k in FIELDS[:2] if not isinstance(values[k], str)]:
        raise ConfigError(f"{path}: {wrong[0]} is {values[wrong[0]]!r}, but must be a text.")
    if not isinstance(values["experiment"], dict):
        raise ConfigError(f"{path}: experiment is {values['experiment']!r}, but must be a table.")
    if wrong := [k for k in GIVEN if k in values["experiment"]]:
        raise ConfigError(f"{path}: experiment sets {wrong[0]}, which the league decides.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", path.stem):
        raise ConfigError(f"{path} must have a name of lower-case letters, digits and hyphens.")
    federation = Federation(path.stem, values["title"], values["kind"], values["experiment"], source)
    federation.experiment("fedavg", 0)  # refuses wrong settings
    return federation


@dataclass(frozen=True)
class LeagueCell:
    federation: Federation
    method: str
    draw: int
    setting: Kind = "default"

    @property
    def code(self) -> RunCode:
        """The user's and Headwise's code that decides the result; read each time, because a user may edit it."""
        return collect_code(self.federation.experiment(self.method, 0))

    @property
    def name(self) -> str:
        """Its method's name as a file name; it changes if the user edits their own code or data."""
        source = make("data", self.federation.experiment(self.method, 0).data)
        label = self.code.label
        if isinstance(source, Own) and source.sha256:
            label = digest(f"{label} {source.sha256}".encode())[:8]
        return folder_name(self.method) + (f"-{label}" if label else "")

    def path(self, folder: Path) -> Path:
        return folder / "cells" / self.federation.name / f"{self.name}-{self.setting}-d{self.draw}.json"

    def settings_path(self, folder: Path) -> Path:
        """Where its method's tuned settings are, which all draws share."""
        return folder / "tuned" / self.federation.name / f"{self.name}.json"

    def command(self, folder: Path) -> str:
        """The command that adds only this cell to the folder."""
        words = ["headwise", "league", self.federation.source, "--methods", self.method, "--draw", str(self.draw)]
        words += ["--settings", self.setting] if self.setting != "default" else []
        return shlex.join([*words, "--out", str(folder)])


@dataclass(frozen=True)
class Result:
    """What a cell measured; the fields are the columns of the CSV."""

    federation: str
    kind: str
    method: str
    family: str
    setting: str
    draw: int
    metric: str = ""
    better: str = "up"
    mean_client: float | None = None
    worst_tenth: float | None = None
    validation: float | None = None
    """mean client on validation samples"""
    new_clients: dict[str, float] = field(default_factory=dict[str, float])
    """mean new client, by epochs after joining; and with local training for as long as the run"""
    kb_down: float | None = None
    """per participating client and round"""
    kb_up: float | None = None
    cpu_seconds: float | None = None
    clients: int = 0
    samples: float = 0.0
    """median training samples of a client"""
    classes: float = 0.0
    """median classes of a client's training samples"""
    floor: float | None = None
    same_clients: bool = False
    """whether client k is the same in all draws"""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """what tuning changed"""
    error: str = ""
    """why there is no score"""
    headwise: str = __version__
    numerics: int = 0
    federation_hash: str = ""
    machine: str = ""
    scores: list[float | None] = field(default_factory=list[float | None])
    """of each client on its test samples; none of new ones"""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


COLUMNS = tuple(f.name for f in fields(Result))
LARGEST = 1 << 28
"""bytes of a CSV"""
TEXTS = (
    *("federation", "kind", "method", "family", "setting", "metric", "better", "error", "headwise", "machine"),
    "federation_hash",
)
"""columns that are texts; all others are JSON"""


def to_csv(results: Iterable[Result]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in sorted(results, key=place_of):
        values = result.to_plain()
        writer.writerow([_cell(name, values[name]) for name in COLUMNS])
    return text.getvalue()


def place_of(result: Result) -> tuple[str, str, str, int]:
    """What tells a cell from all others of a league."""
    return result.federation, result.method, result.setting, result.draw


def _cell(name: str, value: Any) -> str:
    if name in TEXTS:
        return str(csv_cell(value))
    return "" if value is None else to_json(_round_value(value)).replace(", ", ",")


def _round_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [None if v is None else float(f"{v:.4f}") for v in value]
    return {k: _round_value(v) for k, v in value.items()} if isinstance(value, dict) else value


def read_csv(path: Path) -> list[Result]:
    """The results in a CSV that `to_csv` wrote; raises `RunError` if it is something else."""
    data = read_bytes(path)
    if len(data) > LARGEST:
        raise RunError(f"{path} is larger than {LARGEST:,} bytes: it is not the table of a league.")
    try:
        head, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
        if tuple(head) != COLUMNS or any(len(row) != len(head) for row in rows):
            raise ValueError
    except (ValueError, csv.Error):
        raise RunError(f"{path} is not the table of a league: its columns must be {', '.join(COLUMNS)}.") from None
    return [_result(dict(zip(head, row, strict=True)), path, k) for k, row in enumerate(rows, start=2)]


def _result(texts: dict[str, str], path: Path, line: int) -> Result:
    where = f"line {line}"
    values: dict[str, Any] = {
        k: t if k in TEXTS else from_json(t.encode(), path, where) if t else None for k, t in texts.items()
    }
    shapes = {"scores": list, "new_clients": dict, "settings": dict, "draw": int, "clients": int, "same_clients": bool}
    if wrong := [k for k, shape in shapes.items() if type(values[k]) is not shape]:
        raise RunError(f"{path} is damaged: line {line} has a wrong {wrong[0]}.")
    numbers = [values["mean_client"], *values["scores"], *values["new_clients"].values()]
    if any(not (n is None or type(n) in (int, float)) for n in numbers):
        raise RunError(f"{path} is damaged: line {line} has a score that is not a number.")
    return Result(**values)


def read_result(path: Path) -> Result:
    values = read_json(path)
    if not isinstance(values, dict) or {*values} != {*COLUMNS}:
        raise RunError(f"{path} is damaged: it is not the result of a cell.")
    return Result(**values)


def hash_of(federation: Federation) -> str:
    return digest(to_json(federation.values, sort_keys=True).encode())[:8]


def run_cell(cell: LeagueCell, folder: Path, data_dir: Path, *, keep: bool) -> Result:
    """Run the cell and store its result; the reason why a method can't run here is also a result."""
    family: str = find("method", cell.method).family
    about = {
        "federation": cell.federation.name,
        "kind": cell.federation.kind,
        "method": cell.method,
        "family": family,
        "setting": cell.setting,
        "draw": cell.draw,
        "numerics": cell.code.numerics,
        "federation_hash": hash_of(cell.federation),
        "machine": describe_machine(),
    }
    place = folder / ("runs" if keep else "running") / cell.path(folder).relative_to(folder / "cells").with_suffix("")
    if not keep and place.exists():  # of a session that was killed, or of one that is running
        with lock_folder(place):
            shutil.rmtree(place)
    try:
        settings = find_tuned_settings(cell, folder, data_dir) if cell.setting == "tuned" else {}
        experiment = with_settings(resolve_all(cell.federation.experiment(cell.method, cell.draw)), settings)
        began = time.process_time()
        with without_flushing():
            run = run_to_end(experiment, place, "repeat the command", data_dir=data_dir)
        result = Result(**about, settings=settings, **measure(run, experiment, time.process_time() - began))
    except METHOD_ERRORS as error:
        result = Result(**about, error=str(error))
    make_folder(cell.path(folder).parent)
    write_json(cell.path(folder), result.to_plain())
    if not keep:
        shutil.rmtree(place, ignore_errors=True)
    return result


def measure(run: Run, experiment: Experiment, seconds: float) -> dict[str, Any]:
    """The columns that a run fills."""
    metric = run.metric
    test = run.last_scores().get("pre", {})
    if not test:
        raise NoScoreError("it diverged: no client has a score on test samples.")
    scores = [test.get(c) for c in range(run.manifest["experiment"]["clients"])]
    known = sorted(test.values(), key=lambda v: metric.gain(v, 0.0))
    validation = [*run.last_scores("val").get("pre", {}).values()]
    rows = run.rounds
    parts = sum(len(row.get("clients", ())) for row in rows) or 1
    train = [row for row in run.partition["train"] if sum(row)]
    return {
        "metric": metric.name,
        "better": metric.better,
        "mean_client": fmean(known),
        "worst_tenth": fmean(known[: max(len(known) // 10, 1)]),
        "validation": fmean(validation) if validation else None,
        "new_clients": _new_clients(run, metric),
        "kb_down": sum(row["bytes_down"] for row in rows) / parts / 1024,
        "kb_up": sum(row["bytes_up"] for row in rows) / parts / 1024,
        "cpu_seconds": round(seconds, 3),
        "clients": len(scores),
        "samples": float(median(sum(row) for row in train)),
        "classes": float(median(sum(n > 0 for n in row) for row in train)),
        "floor": run.floor,
        "same_clients": experiment.partition.name == "natural",
        "scores": scores,
    }


def _new_clients(run: Run, metric: Metric) -> dict[str, float]:
    measured = run.new_clients
    means: dict[str, float] = {}
    for row in measured["rows"] if measured else ():
        scores = [s[metric.name] for s in row["each"] if s and s.get(metric.name) is not None]
        if scores and row["model"] == "joined" and row["epochs"] in JOINED:
            means[f"{row['epochs']:g} epochs"] = fmean(scores)
        elif scores and row["model"] == "standalone":
            means["local training"] = fmean(scores)
    return means


def find_tuned_settings(cell: LeagueCell, folder: Path, data_dir: Path) -> dict[str, Any]:
    """The best of a few trials; searched once per method and federation."""
    path = cell.settings_path(folder)
    if path.exists():
        known: Any = read_json(path)
        if not isinstance(known, Mapping):
            raise RunError(f"{path} is damaged: it is not a table of settings.")
        return dict(known)
    with tempfile.TemporaryDirectory() as home:
        base = cell.federation.experiment(cell.method, TUNING_DRAW)
        result = tune(base, trials=TRIALS, out=Path(home) / "tune", data_dir=data_dir)
    make_folder(path.parent)
    write_json(path, result.best_settings)
    return result.best_settings
