"""`fit`: from Python objects to a run, in one call."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..data.dataset import cast_labels
from ..data.own.arrays import form_of, map_inputs
from ..data.own.description import PARTS, Description, read_description
from ..data.own.objects import COPY_GB, store
from ..engine.events import Event, Observer, RoundEnded, RunStarted
from ..errors import ConfigError, closest
from ..log.metrics import ACCURACY
from ..log.schema import MOMENTS, figures
from ..runs.manifest import INPUTS
from ..runs.query import Run
from ..settings.choices import Choice
from ..settings.experiment import Experiment, experiment_from, put
from ..settings.fields import dump, field_types
from ..settings.names import list_names
from ..tasks.registry import kind_of
from .continue_from import continue_from, settings_after
from .inputs import new_inputs, with_remembered
from .launch import free_folder, resume, run, set_aside

SHORT = {
    "lr": "train.lr",
    "epochs": "train.epochs",
    "batch": "train.batch",
    "ratio": "sampling.ratio",
    "workers": "engine.workers",
    "device": "engine.device",
    "optimizer": "train.optimizer",
    "metric": "evaluate.metric",
    "patience": "stop.patience",
    "class_weight": "train.class_weights",
}
"""settings with short names: as on the command line, or as scikit-learn and torch call them"""
DATA = ("classes", "names", "separator", "missing", "features", "preprocess", "split")
"""settings of the data, named as in a data.toml"""
ABOUT = ("client", "target", "task", "copy_gb", "sample_weight")
"""arguments of `fit` that are about the data"""
OWN_SETTINGS = tuple(name for name in field_types(Experiment) if name not in ("data", "partition", "clients"))
"""settings of an `Experiment` that a user's own data leave open"""
TABLES = frozenset(k for k, kind in field_types(Experiment).items() if is_dataclass(kind))
"""settings that are tables of others"""
LISTED = 10
"""classes that are printed"""
BAR = 30
"""characters of the progress bar"""
KNOWN_AS = {
    "random_state": "seed", "n_jobs": "workers", "learning_rate": "lr", "learning_rate_init": "lr", "eta": "lr",
    "batch_size": "batch", "max_iter": "rounds", "num_rounds": "rounds", "n_epochs": "epochs",
    "local_epochs": "epochs", "scoring": "metric", "verbose": "quiet", "test_size": "split", "groups": "client",
    "weight": "sample_weight", "weights": "sample_weight", "sample_weights": "sample_weight",
}  # fmt: skip
"""what other libraries call our settings"""


def fit(
    clients: Any,
    *,
    method: Any = None,
    model: Any = None,
    rounds: int = 50,
    start: Run | str | Path | None = None,
    task: str | None = None,
    client: str = "",
    target: str | Sequence[str] = (),
    sample_weight: Any = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    copy_gb: float = COPY_GB,
    observers: Iterable[Observer] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train on data that is already in memory, and return the run.

    Args:
        clients: maps names to ``(x, y)``, ``(train, test)`` or ``(train, val, test)`` of arrays, tensors, DataFrames
            or torch Datasets; or one DataFrame or Hugging Face Dataset, with columns named by `client` and `target`;
            or a partitioner of flwr-datasets; or the path of a data.toml.
        method: a name with options, such as ``"fedrep:head_epochs=5"``, your own ``"file.py"``, or a method object; if
            it is not given, ``"fedavg"``, or the method of `start`.
        model: a name, an `nn.Module`, a class or function that returns one, ``"package.module:factory"`` or
            ``"file.py:factory"``; if it is not given, one that suits the data.
        rounds: rounds of training; with `start`, that many more.
        start: a finished run, or its folder, to continue from: its models, and its settings unless others are given.
            `clients` may have more samples, and more or fewer clients.
        task: what to predict; if it is not given, it is guessed from the target and printed.
        client: the column that names each row's client, in one table.
        target: the column, or columns, to predict.
        sample_weight: how much each training sample counts in the loss: the name of a column, numbers in the order of
            one table's rows, or numbers by client. Metrics count all samples the same.
        out: the run's folder, which must be new; if it is not given, a folder is created under ``runs/``.
        overwrite: replace the run in `out`, once this one has started. A folder that is not a run is never replaced.
        copy_gb: beyond this many gigabytes, arrays are not copied into the run's folder: they must be in files
            (np.memmap), which are referenced with their hashes.
        observers: functions that are called with each event of the run.
        quiet: don't print how the data was read (task, features, scaling, split), nor, in a terminal or a notebook,
            the progress.
        settings: those of an `Experiment` (``train={"lr": 0.1}`` or simply ``lr=0.1``) and of a data.toml
            (``split``, ``preprocess``, ``classes``, ...).

    Returns:
        The finished run, or an interrupted one that `resume` continues.

    >>> run = fit({"va": (x, y), "rome": (x2, y2)}, method="fedah", rounds=20, quiet=True)
    >>> run.names
    ('va', 'rome')
    """
    described, values = _sort_settings(settings, fit)
    values |= {"rounds": rounds} | {k: v for k, v in (("method", method), ("model", model)) if v is not None}
    make = experiment_from
    if start is not None:
        values = _merge(_settings_after(start), values)
        make = continue_from
    values.setdefault("method", "fedavg")
    name = Choice.parse(values["method"], "method").name.partition("@")[0]
    folder = Path(out) if out else free_folder(f"{Path(name).stem}-own-s{values.get('seed', 0)}")
    experiment_from({**values, "data": "digits"})  # a wrong setting is refused before any data is read
    described |= {"task": task} if task else {}
    with set_aside(folder, overwrite), new_inputs(folder) as home, show_progress(name, quiet) as progress:
        where = {"client": client, "target": target, "copy_gb": copy_gb, "sample_weight": sample_weight}
        toml = store(clients, home, **where, **described)
        first = [] if quiet else [partial(_print_data, folder, toml)]
        experiment = make({**values, "data": str(toml)})
        if start is not None:
            experiment = with_remembered(experiment, _folder_of(start))
        return run(experiment, folder, observers=[*first, *progress, *observers])


def continue_run(before: Run, rounds: int | None, out: str | Path | None, settings: Mapping[str, Any]) -> Run:
    """Finish a run, or with `rounds` train that many more in a new folder; `settings` are those of `fit`."""
    if rounds is None:
        if out is not None or settings:
            raise ConfigError("rounds is missing: out and other settings are those of a new run, which continues this.")
        return resume(before.path)
    described, values = _sort_settings(settings, fit)
    if described:
        raise ConfigError(
            f"{next(iter(described))} is a setting of the data, which can't change here: use hw.fit(..., start=run)."
        )
    values = _merge(settings_after(before.path), {**values, "rounds": rounds})
    experiment = with_remembered(continue_from(values), before.path)
    return run(experiment, out, data_dir=before.manifest["data_dir"])


def _folder_of(start: Run | str | Path) -> Path:
    return start.path if isinstance(start, Run) else Path(start)


def _settings_after(start: Run | str | Path) -> dict[str, Any]:
    """The settings of a run that continues from this one, except those of its data."""
    data = ("data", "partition", "split", "clients", "task", "target_range", "fraction", "without")
    return {name: value for name, value in settings_after(_folder_of(start)).items() if name not in data}


def _merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with these changes; tables are merged."""
    tables = {k: {**values[k], **v} for k, v in changes.items() if isinstance(v, Mapping) and k in TABLES}
    return {**values, **changes, **tables}


@contextmanager
def show_progress(title: str, quiet: bool) -> Iterator[list[Observer]]:
    """The observers that show a run's rounds in one line of a terminal or a notebook."""
    if quiet or not is_watched():
        yield []
        return
    line = ProgressLine(title)
    try:
        yield [line]
    finally:
        line.end()


def is_watched() -> bool:
    """Whether somebody sees stderr while it is written: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class ProgressLine:
    """A bar, the round, the last score and the time left, in a line that is rewritten in place."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rounds = 0
        self.first = 0
        self.begun = time.monotonic()
        self.metric = ACCURACY
        self.score = ""
        self.width = 0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted(rounds, _, start, metric):
                self.rounds = rounds
                self.first = start
                self.metric = metric
                self.begun = time.monotonic()
                self._write(start)
            case RoundEnded(row):
                for moment in MOMENTS:
                    if values := figures(row, moment, self.metric):
                        self.score = f"{self.metric.label} {self.metric.form(values[self.metric.name])} ({moment})"
                        break
                self._write(row["round"])
            case _:
                pass

    def _write(self, t: int) -> None:
        full = BAR * t // max(self.rounds, 1)
        left = (time.monotonic() - self.begun) / max(t - self.first, 1) * (self.rounds - t)
        parts = [
            f"round {t} of {self.rounds}",
            self.score,
            f"{left:.0f} s left" if self.first < t < self.rounds else "",
        ]
        text = f"{self.title} [{'#' * full}{' ' * (BAR - full)}] {', '.join(filter(None, parts))}"
        sys.stderr.write(f"\r{text.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(text)

    def end(self) -> None:
        if self.width:
            sys.stderr.write("\n")


def _print_data(folder: Path, toml: Path, event: Event) -> None:
    """Print how the run read the data, before it trains."""
    if isinstance(event, RunStarted):
        sys.stdout.write(f"{describe_data(Run(folder), read_description(toml))}\n")


def describe_data(run: Run, d: Description) -> str:
    """A few lines: the task, the clients, the kinds of features and what was done to them, and the split."""
    task = run.manifest["experiment"]["task"]
    kind = kind_of(task)
    names = [str(name) for name in run.partition["classes"]] if kind.exclusive else []
    classes = [str(name) for name in cast_labels(names, d.label_type)] if d.label_type == "bool" else names
    more = ", ..." if len(classes) > LISTED else ""
    listed = f": {', '.join(classes[:LISTED])}{more}" if classes else ""
    of = f" of {', '.join(d.target)}" if d.target else ""
    sizes = [f"{sum(map(sum, run.partition[part]))} {part}" for part in PARTS]
    scaled = "standardized" if d.preprocess.numbers == "standardize" else "not scaled"
    pictures = "standardized by channel" if d.preprocess.images == "standardize" else "scaled to the range 0 to 1"
    how = {
        "number": f"{scaled}; gaps filled with {d.preprocess.fill}",
        "category": "one-hot; unknown ones count as missing",
        "text": "words in order" if d.preprocess.texts == "tokens" else "bag of words",
        "image": pictures,
    }
    rows = [("task", f"{task}{of}{listed}"), ("clients", f"{len(run.partition['train'])}; samples: {', '.join(sizes)}")]
    rows += [(name, f"{', '.join(names)} ({how[name]})") for name, names in dump(d.features).items() if names]
    if not d.features.names():
        rows.append(_describe_arrays(d, f"numbers {scaled}", f"images of uint8 {pictures}"))
    if d.weight or (d.place / "weight.npy").is_file():
        rows.append(("weights", f"{d.weight or 'as given'}, of each training sample in the loss"))
    by = {"ratio": f"{d.split.ratio} at random", "time": f"{d.split.ratio} in the order of {d.split.column}"}
    rows.append(("split", by.get(d.split.by, f"as the column {d.split.column} says" if d.split.column else "as given")))
    return "\n".join(f"{name:9} {text}" for name, text in rows)


def _describe_arrays(d: Description, numbers: str, images: str) -> tuple[str, str]:
    """How samples without columns were prepared; an NPZ file may have features or images, so both are described."""
    if d.preprocess.texts == "tokens":
        return "features", "tokens"
    if d.format == "arrays":
        return "features", images if form_of(map_inputs(d)) == "image" else numbers
    return "features", f"{numbers}; {images}"


def read_base(
    base: Any, settings: Mapping[str, Any], out: str | Path | None, function: Callable[..., Any]
) -> tuple[Experiment, Path]:
    """The given experiment, or one from data and settings as for `fit`; and the folder for results.

    `function` is the public one that was called: its name is that of the folder, and errors suggest its arguments.
    """
    verb = function.__name__
    if isinstance(base, Experiment):
        known = (*ABOUT, *field_types(Experiment))
        _sort_settings({k: v for k, v in settings.items() if k not in known}, function)  # a typo can't be set there
        if settings:
            raise ConfigError(f"{next(iter(settings))} is given beside an Experiment: set it there.")
        return base, Path(out) if out else free_folder(f"{verb}-{base.data.name}")
    if isinstance(base, str) and base in list_names("data"):
        raise ConfigError(f"base is {base!r}, a public data set: write hw.{verb}(hw.Experiment(data={base!r})).")
    about = {name: settings[name] for name in ABOUT if name in settings}
    described, values = _sort_settings({k: v for k, v in settings.items() if k not in about}, function)
    folder = Path(out) if out else free_folder(f"{verb}-own")
    experiment_from({**values, "data": "digits"})
    return experiment_from({**values, "data": str(store(base, folder / INPUTS, **about, **described))}), folder


def _sort_settings(settings: Mapping[str, Any], function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the data, and those of the experiment; refuses others, and suggests arguments of the function."""
    described: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in sorted(settings.items(), key=lambda item: item[0] in SHORT):  # or a table would replace them
        if name in SHORT:
            put(values, SHORT[name], value)
        elif name in DATA:
            described[name] = {"ratio": value} if name == "split" and isinstance(value, str) else value
        elif name in OWN_SETTINGS:
            values[name] = {**values.get(name, {}), **value} if isinstance(value, Mapping) else value
        else:
            arguments = [a.name for a in inspect.signature(function).parameters.values() if a.kind is not a.VAR_KEYWORD]
            known = [*OWN_SETTINGS, *SHORT, *DATA, *ABOUT, *arguments]
            meant = KNOWN_AS[name] if KNOWN_AS.get(name) in known else closest(name, known)
            listed = f"see help(headwise.{function.__name__}) and help(headwise.Experiment)."
            hint = f"did you mean {meant!r}?" if meant else listed
            raise ConfigError(f"{name} is not a setting: {hint}")
    return described, values
