"""Searches hyperparameters on validation samples with Optuna; a search that was killed continues in its folder."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from ..disk.files import make_folder, read_json, without_flushing, write_bytes, write_json
from ..disk.jsontext import leaves, to_toml
from ..engine.events import Event, Observer, RoundEnded
from ..errors import ConfigError, NoScoreError, explain_missing, pluralize
from ..log.metrics import Metric
from ..log.schema import JUDGED, Round, figures
from ..report.tables import Table, to_markdown
from ..runs.query import Run
from ..seeds import seed_of
from ..settings.experiment import Experiment, with_settings
from ..settings.fields import Count, Range, convert, difference, field_types, literal
from ..settings.foreign import CHOICES
from .code import collect_code
from .fit import read_base
from .launch import data_folder, free_folder, run_to_end
from .prepare import prepare
from .registry import make, resolve_all

Scale = Literal["log", "uniform", "int", "choice"]
FACTOR = 30.0
"""how far from its default a positive number is searched in either direction"""
SEARCHED = ("train", "method", "model", "server_model", "buffers")
"""settings, or tables of them, that a search may change: all others are part of the question"""
EXAMPLES = "train.lr=log:1e-3..1, train.epochs=int:1..10, method.mu=uniform:0..1 or train.optimizer=sgd,adam"


@dataclass(frozen=True)
class Dimension:
    """One setting, and the values it may take."""

    name: str
    scale: Scale
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.scale == "choice":
            return f"{self.name}={','.join(map(str, self.choices))}"
        return f"{self.name}={self.scale}:{self.low:g}..{self.high:g}"

    def contains(self, value: Any) -> bool:
        """Whether the search could choose this value."""
        if self.scale == "choice":
            return value in self.choices
        in_range = isinstance(value, (int, float)) and self.low <= value <= self.high
        return in_range and (self.scale != "int" or value == int(value))

    def suggest(self, trial: Any) -> Any:
        """The value that an Optuna trial chooses."""
        if self.scale == "choice":
            return trial.suggest_categorical(self.name, self.choices)
        if self.scale == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.low >= 1)
        return trial.suggest_float(self.name, self.low, self.high, log=self.scale == "log")


def parse_dimension(text: str) -> Dimension:
    """From ``train.lr=log:1e-3..1`` or ``train.optimizer=sgd,adam``."""
    name, sign, values = (part.strip() for part in text.partition("="))
    if not sign or not name or not values:
        raise ConfigError(f"space is {text!r}, but must look like {EXAMPLES}.")
    if name == "method" or name.partition(".")[0] not in SEARCHED:
        allowed = "train.*, method.*, model, server_model and buffers"
        other = ": headwise choose compares methods" if name == "method" else ""
        raise ConfigError(f"space is {text!r}, but a search may only change {allowed}{other}.")
    scale, colon, bounds = values.partition(":")
    if not colon or scale not in get_args(Scale):
        choices = tuple(literal(value.strip()) for value in values.split(","))
        if len(choices) < 2 and ".." in values:
            raise ConfigError(
                f"space is {text!r}, whose range has no scale: write {name}=uniform:{values}, log:{values} or "
                f"int:{values}."
            )
        if len(choices) < 2:
            raise ConfigError(f"space is {text!r}, which leaves nothing to search: give two values or a range.")
        return Dimension(name, "choice", choices=choices)
    low, dots, high = (literal(part) for part in bounds.partition(".."))
    numbers = all(isinstance(x, int if scale == "int" else (int, float)) for x in (low, high))
    if scale == "choice" or not dots or not numbers:
        raise ConfigError(f"space is {text!r}, but must look like {EXAMPLES}.")
    if scale == "log" and low <= 0:
        raise ConfigError(f"space is {text!r}, but the low end of a log range must be above 0.")
    if not low < high:
        raise ConfigError(f"space is {text!r}, but the low end of a range must be below its high end.")
    return Dimension(name, scale, float(low), float(high))  # pyright: ignore[reportArgumentType]


def parse_space(space: Any) -> list[Dimension]:
    """From one text, a list of texts, or a mapping of names to ranges or lists of values."""
    if isinstance(space, Mapping):
        listed = {k: ",".join(map(to_toml, v)) if isinstance(v, (list, tuple)) else v for k, v in space.items()}
        space = [f"{name}={values}" for name, values in listed.items()]
    texts = convert([space] if isinstance(space, str) else space, tuple[str, ...], "space")
    return [parse_dimension(text) for text in texts]


def find_space(experiment: Experiment, given: Iterable[Dimension] = ()) -> list[Dimension]:
    """The learning rate and the numbers among the method's own options; `given` ones replace or extend them."""
    dimensions = {"train.lr": Dimension("train.lr", "log", 1e-3, 1.0)}
    method = make("method", experiment.method)
    for name, kind in field_types(type(method)).items():
        is_own = name in inspect.get_annotations(type(method))  # others share it, such as the server's optimizer
        if is_own and (dimension := _dimension(f"method.{name}", kind, getattr(method, name))):
            dimensions[dimension.name] = dimension
    dimensions |= {d.name: d for d in given}
    return [*dimensions.values()]


def _dimension(name: str, kind: Any, default: Any) -> Dimension | None:
    """Numbers with a range; options that make a variant of a method are not searched."""
    if get_origin(kind) is not Annotated or isinstance(default, bool) or not isinstance(default, (int, float)):
        return None
    base, *limits = get_args(kind)
    limit = next((each for each in limits if isinstance(each, Range)), None)
    if limit is None:
        return None
    if base is int:
        low = max(limit.low, 1, default // 4)
        high = min(limit.high, max(4 * default, 4))
        return Dimension(name, "int", low, high) if low < high else None
    if limit.high <= 1:
        return Dimension(name, "uniform", max(limit.low, 0.01) if limit.above else limit.low, limit.high)
    if default <= 0:
        return None
    return Dimension(name, "log", max(limit.low, default / FACTOR), min(limit.high, default * FACTOR))


TRIALS = 20
"""if neither trials nor a budget are given"""
VALIDATION = 0.2
"""share of the training samples that a federation without validation samples sets aside"""
EDGE = 0.05
"""share of a range, on its own scale, that counts as its edge"""
SHOWN = 10
"""trials that the command line lists"""
DIVERGED = -1e12
"""the score of a run that diverged, which is a result"""
ENDS = {"complete": "", "pruned": ", stopped early", "diverged": ", diverged"}
BUDGET = re.compile(r"(?=\d)(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
LONGEST = 1e9
"""seconds of a budget"""
Watch = Callable[[str], AbstractContextManager[Iterable[Observer]]]
"""returns observers that display the run with this title"""


@dataclass(frozen=True, repr=False)
class Tuning:
    """A search that has ended."""

    out: Path
    metric: Metric
    space: Sequence[Dimension]
    trials: Sequence[dict[str, Any]]
    """number, settings, score on validation samples (None if pruned before the first evaluation), state, rounds"""
    importances: dict[str, float]
    """by setting, as Optuna estimates them, which adds up to 1 even if no setting matters; empty with few trials"""
    experiment: Experiment
    """with the best settings"""

    @property
    def best(self) -> dict[str, Any]:
        return best_trial(self.trials, self.metric)

    @property
    def best_settings(self) -> dict[str, Any]:
        """The settings of the best trial, to three digits."""
        return {k: float(_shorten(v)) if isinstance(v, float) else v for k, v in self.best["settings"].items()}

    @property
    def start(self) -> dict[str, Any]:
        """The trial with the settings that the search began with."""
        return self.trials[0]

    def __repr__(self) -> str:
        """Its best trial; the table has the others."""
        best = f"{self.metric.label} {self.metric.form(self.best['score'])} with {self._format_best()}"
        return f"<Tuning {self.out}: {pluralize(len(self.trials), 'trial')}, best validation {best}>"

    def _format_best(self) -> str:
        return ", ".join(f"{name} = {_shorten(value)}" for name, value in self.best["settings"].items())

    def to_plain(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "metric": self.metric.name,
            "space": [str(d) for d in self.space],
            "best": self.best,
            "importances": self.importances,
            "trials": list(self.trials),
        }

    def table(self) -> Table:
        """The trials, best first, those that were stopped early last."""
        ordered = sorted(self.trials, key=lambda t: (t["state"] != "complete", -self.metric.gain(t["score"] or 0.0, 0)))
        head = ["trial", *(d.name for d in self.space), f"validation {self.metric.label}", "rounds"]
        return head, [
            [
                str(t["number"]),
                *(_shorten(t["settings"].get(d.name)) for d in self.space),
                "" if t["score"] is None else self.metric.form(t["score"]),
                f"{t['rounds']}{ENDS[t['state']]}",
            ]
            for t in ordered
        ]

    def words(self) -> list[str]:
        """The result in sentences, and how far to trust it."""
        best = self.best
        start = self.start
        form = self.metric.form
        sentences = [f"Best on validation samples: {form(best['score'])} with {self._format_best()}."]
        if start["state"] == "complete" and best is not start:
            sentences.append(f"The settings that the search began with give {form(start['score'])}.")
        if len(self.importances) > 1:
            most = max(self.importances, key=lambda name: self.importances[name])
            sentences.append(f"{most} seems to matter most: Optuna's estimate, from {len(self.trials)} trials.")
        edge = [d for d in self.space if _is_at_edge(d, best["settings"].get(d.name))]
        for d in edge:
            sentences.append(f"{d.name} is at the edge of its range ({d}): a wider --space may find better values.")
        return [*sentences, "One partition and one seed per trial: compare with --draws before you rely on it."]


def tune(
    base: Any,
    *,
    trials: int | None = None,
    budget: str | float | None = None,
    space: str | Sequence[str] | Mapping[str, Any] = (),
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
    **settings: Any,
) -> Tuning:
    """Search the settings of an experiment on validation samples; test samples decide nothing.

    Args:
        base: an `Experiment`, or data as `fit` takes it; `settings` are then those of `fit`. The search begins with
            these settings: they are the first trial.
        trials: how many settings to try; without a budget, 20.
        budget: the time after which no trial is begun or continued, such as ``"90s"``, ``"30m"`` or a number of
            seconds.
        space: settings to search as well as ``train.lr`` and the numbers among the method's own options, or other
            ranges for these, such as ``"train.lr=log:1e-3..1"``, ``["train.epochs=int:1..10", ...]`` or
            ``{"train.lr": "log:1e-3..1", "train.optimizer": ["sgd", "adam"]}``.
        out: the folder of the search; that of an earlier one continues it.
        data_dir: the folder of public data sets.
        watch: returns observers that display the run with this title.
        **settings: those of `fit`, such as ``client="hospital"`` or ``method="fedprox"``.

    Returns:
        The trials, the best settings and an experiment with them. The same number of trials gives the same answer,
        even if the search was killed in between.

    >>> result = tune(Experiment(method="fedprox", data="digits", rounds=2), trials=2)
    >>> [*result.best["settings"]]
    ['train.lr', 'method.mu']
    """
    trials = convert(trials, Count | None, "trials")
    seconds = None if budget is None else parse_budget(budget)
    dimensions = parse_space(space)
    if out is None and isinstance(base, Experiment):
        out = free_folder(f"tune-{Path(base.method.name).stem}-{base.data.name}")
    base, folder = read_base(base, settings, out, tune)
    search = _Search(base, dimensions, folder, data_dir, seconds)
    limit = trials if trials is not None else (TRIALS if budget is None else 10**6)
    while trial := search.next_trial(limit):
        values = {d.name: d.suggest(trial) for d in search.space}
        folder = search.folder / f"trial-{trial.number:03d}"
        with watch(f"trial {trial.number}") as observers, search.judge(trial) as judge, without_flushing():
            judge.catch_up(folder)
            experiment = _with_settings(search.base, values | {"evaluate.every": search.every})
            again = f"tune again into {search.folder}"
            run = run_to_end(experiment, folder, again, data_dir=data_dir, observers=[*observers, judge.observe])
            judge.finish(run)
    return search.finish()


def parse_budget(value: Any) -> float:
    """Seconds, from a number or a text such as 90s, 30m or 1h30m."""
    if isinstance(value, str):
        match = BUDGET.fullmatch(value)
        parts = match.groups(default="0") if match else ()
        seconds = sum(float(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=bool(parts)))
    else:
        seconds = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
    if not 0 < seconds < LONGEST:
        raise ConfigError(f"budget is {value!r}, but must be a time such as 90s, 30m or 1h30m.")
    return seconds


def best_trial(trials: Iterable[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """The first of those that ended with the best score."""
    return max(
        (t for t in trials if t["state"] == "complete"), key=lambda t: (metric.gain(t["score"], 0), -t["number"])
    )


def with_validation(base: Experiment) -> Experiment:
    """The experiment with validation samples at every client, all of which are measured: a few would be noisy."""
    share = base.evaluate.validation or VALIDATION
    return dataclasses.replace(base, evaluate=dataclasses.replace(base.evaluate, validation=share, clients=1.0))


def validation_score(row: Any, metric: Metric) -> float | None:
    """The score on validation samples in a line of rounds.jsonl; None if there is none."""
    known = [values for m in JUDGED if (values := row.get(m)) and values.get(metric.validation) is not None]
    return float(known[0][metric.validation]) if known and figures(row, _moment(row), metric) else None


def _moment(row: Any) -> str:
    return next((m for m in JUDGED if m in row), "pre")


class BudgetSpentError(Exception):
    """The budget is used up; the trial continues in the next session."""


class _Search:
    """A search in its folder, new or continued."""

    def __init__(
        self,
        base: Experiment,
        given: Iterable[Dimension],
        folder: Path,
        data_dir: str | Path | None,
        budget: float | None,
    ) -> None:
        self.deadline = None if budget is None else time.monotonic() + budget
        self.first_rung = max(base.rounds // 8, 1)
        # measured where a trial can be stopped early, however often its experiment is; but patience counts evaluations
        self.every = base.evaluate.every if base.stop.patience else self.first_rung
        self.optuna = _import_optuna()
        self.states = self.optuna.trial.TrialState
        self.base = resolve_all(with_validation(base))
        self.metric = prepare(self.base, data_folder(data_dir)).plan.metric
        self.space = find_space(self.base, given)
        for d in self.space:  # a wrong name or value is refused before the first trial
            for value in d.choices or (d.low, d.high):
                _with_settings(self.base, {d.name: int(value) if d.scale == "int" else value})
        self.folder = folder
        self.study = self._open()

    def _open(self) -> Any:
        """The study in this folder; refuses a folder that holds another search."""
        about = {
            "experiment": self.base.to_plain(),
            "space": [str(d) for d in self.space],
            "metric": self.metric.name,
            "code": collect_code(self.base).to_plain(),
        }
        path = self.folder / "tune.json"
        if path.exists() and (before := read_json(path)) != about:
            keys = [k for k in about if before.get(k) != about[k]] if isinstance(before, dict) else [*about]
            raise ConfigError(f"{self.folder} holds a search that differs in {', '.join(keys)}: choose another --out.")
        make_folder(self.folder)
        write_json(path, about)
        log = self.optuna.storages.journal.JournalFileBackend(str(self.folder / "optuna.log"))
        return self.optuna.create_study(
            storage=self.optuna.storages.JournalStorage(log),
            study_name="tune",
            direction="maximize",
            pruner=self.optuna.pruners.SuccessiveHalvingPruner(min_resource=self.first_rung, reduction_factor=3),
            load_if_exists=True,
        )

    @property
    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def next_trial(self, limit: int) -> Any:
        """The trial that was interrupted, or a new one; None if the search has ended."""
        if self.is_over:
            return None
        for t in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            if t.params.keys() == {d.name for d in self.space}:
                return self.optuna.trial.Trial(self.study, t._trial_id)
            self.study.tell(t.number, state=self.states.FAIL)  # killed before it knew its settings
        counted = (self.states.COMPLETE, self.states.PRUNED, self.states.WAITING)
        trials = self.study.get_trials(deepcopy=False, states=counted)
        if len(trials) >= limit:
            return None
        # each trial has a sampler of its own, so that a continued search draws what an uninterrupted one would
        seed = seed_of(self.base.seed, "tune", len(trials)) % 2**32
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
        if not trials:
            known = dict(leaves(self.base.to_plain()))
            self.study.enqueue_trial({d.name: known[d.name] for d in self.space if d.contains(known.get(d.name))})
        return self.study.ask()

    @contextmanager
    def judge(self, trial: Any) -> Iterator[_Judge]:
        with suppress(BudgetSpentError):  # the trial stays open, and the search ends by its deadline
            try:
                yield _Judge(self, trial)
            except self.optuna.TrialPruned:
                self.study.tell(trial, state=self.states.PRUNED)

    def list_trials(self) -> list[dict[str, Any]]:
        """Those that ended: number, settings, score, state and rounds."""
        trials: list[dict[str, Any]] = []
        for t in self.study.get_trials(deepcopy=False, states=(self.states.COMPLETE, self.states.PRUNED)):
            value = t.value if t.state == self.states.COMPLETE else t.intermediate_values.get(t.last_step)
            trials.append(
                {
                    "number": t.number,
                    "settings": dict(t.params),
                    "score": None if value in (None, DIVERGED) else self.metric.gain(value, 0.0),
                    "state": "diverged" if value == DIVERGED else t.state.name.lower(),
                    "rounds": len(Run(self.folder / f"trial-{t.number:03d}").rounds),
                }
            )
        return trials

    def estimate_importances(self) -> dict[str, float]:
        """Empty where Optuna warns that it can't, for example since all scores are equal: its shares are then equal."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            try:
                shares = self.optuna.importance.get_param_importances(self.study)
            except UserWarning:
                return {}
        return {name: float(share) for name, share in shares.items()}

    def finish(self) -> Tuning:
        trials = self.list_trials()
        complete = sum(t["state"] == "complete" for t in trials)
        if not complete:
            raise NoScoreError(
                f"no trial in {self.folder} has ended with a score: give it a larger budget, or fewer rounds."
            )
        shares = self.estimate_importances() if complete >= 2 * len(self.space) + 2 else {}
        best = _with_settings(self.base, best_trial(trials, self.metric)["settings"])
        result = Tuning(self.folder, self.metric, self.space, trials, shares, best)
        write_json(self.folder / "result.json", result.to_plain())
        write_bytes(self.folder / "tuning.md", "\n".join([to_markdown(result.table()), *result.words(), ""]).encode())
        write_bytes(self.folder / "best.toml", experiment_toml(result.experiment).encode())
        return result


class _Judge:
    """Reports a trial's scores to Optuna, and ends the trial if others did better."""

    def __init__(self, search: _Search, trial: Any) -> None:
        self.search = search
        self.trial = trial

    def catch_up(self, folder: Path) -> None:
        """Report the rounds of an earlier session: it may have been killed after it stored a round."""
        for row in Run(folder).rounds if (folder / "manifest.json").exists() else ():
            self._report(row)

    def observe(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            self._report(event.row)
            if self.search.is_over:
                raise BudgetSpentError

    def _report(self, row: Round) -> None:
        metric = self.search.metric
        score = validation_score(row, metric)
        known = self.search.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values
        if score is None or row["round"] in known:
            return
        self.trial.report(metric.gain(score, 0.0), row["round"])
        if self.trial.should_prune():
            raise self.search.optuna.TrialPruned

    def finish(self, run: Run) -> None:
        score = validation_score(run.rounds[-1], self.search.metric)
        self.search.study.tell(self.trial, DIVERGED if score is None else self.search.metric.gain(score, 0.0))


def _import_optuna() -> Any:
    with explain_missing("tune needs Optuna: pip install 'headwise[tune]'."):
        import optuna  # pyright: ignore[reportMissingImports]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _with_settings(base: Experiment, settings: dict[str, Any]) -> Experiment:
    experiment = with_settings(base, settings)
    make("method", experiment.method)  # refuses options that the method does not have
    return experiment


def experiment_toml(experiment: Experiment) -> str:
    """A file for ``headwise run`` with the settings that differ from the defaults."""
    now = experiment.to_plain()
    values = {k: v for k, v in difference(now, Experiment().to_plain()).items() if k != "engine"}
    values |= {k: now[k] for k in CHOICES if k in values}
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())


def _is_at_edge(d: Dimension, value: Any) -> bool:
    if d.scale == "choice" or value is None:
        return False
    if d.scale == "int":
        return value in (d.low, d.high)
    low, high, at = map(math.log, (d.low, d.high, value)) if d.scale == "log" else (d.low, d.high, value)
    return not EDGE <= (at - low) / (high - low) <= 1 - EDGE


def _shorten(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
