"""Searches hyperparameters on validation samples with Optuna; a search that was killed continues in its folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk.files import read_json, write_bytes, write_json
from ..disk.jsontext import to_toml
from ..engine.events import Event, Observer, RoundEnded
from ..errors import ConfigError, RunError
from ..log.metrics import Metric
from ..log.schema import Round, figures
from ..report.tables import Table, to_markdown
from ..runs.query import Run
from ..seeds import seed_of
from ..settings.experiment import Experiment, with_settings
from ..settings.fields import difference
from .launch import data_folder, free_folder, run_or_resume
from .prepare import prepare
from .registry import make, resolve_all
from .space import Dimension, find_space

TRIALS = 20
"""if neither trials nor a budget are given"""
VALIDATION = 0.2
"""share of the training samples that a federation without validation samples sets aside"""
DIVERGED = -1e12
"""the score of a run that diverged, which is a result"""
ENDS = {"complete": "", "pruned": ", stopped early", "diverged": ", diverged"}
MOMENTS = ("pre", "stale", "global")
Watch = Callable[[str], AbstractContextManager[Iterable[Observer]]]


@dataclass(frozen=True)
class Tuning:
    """A search that has ended."""

    out: Path
    metric: Metric
    space: Sequence[Dimension]
    trials: Sequence[dict[str, Any]]
    """number, settings, score on validation samples (None if pruned before the first evaluation), state, rounds"""
    importances: dict[str, float]
    """share of the variance of the scores that a setting explains; empty with few trials"""
    experiment: Experiment
    """with the best settings"""

    @property
    def best(self) -> dict[str, Any]:
        return best_trial(self.trials, self.metric)

    @property
    def start(self) -> dict[str, Any]:
        """The trial with the settings that the search began with."""
        return self.trials[0]

    def plain(self) -> dict[str, Any]:
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
                *(_short(t["settings"].get(d.name)) for d in self.space),
                "" if t["score"] is None else self.metric.form(t["score"]),
                f"{t['rounds']}{ENDS[t['state']]}",
            ]
            for t in ordered
        ]

    def words(self) -> list[str]:
        """What was found, and how sure that is."""
        best = self.best
        start = self.start
        form = self.metric.form
        settings = ", ".join(f"{name} = {_short(value)}" for name, value in best["settings"].items())
        sentences = [f"Best on validation samples: {form(best['score'])} with {settings}."]
        if start["state"] == "complete" and best is not start:
            sentences.append(f"The settings that the search began with give {form(start['score'])}.")
        for name, value in sorted(self.importances.items(), key=lambda item: -item[1])[:3]:
            sentences.append(f"{name} explains {value:.0%} of the differences between trials.")
        edge = [d for d in self.space if _is_at_edge(d, best["settings"].get(d.name))]
        for d in edge:
            sentences.append(f"{d.name} is at the edge of its range ({d}): a wider --space may find better values.")
        return [*sentences, "One partition and one seed per trial: compare with --draws before you rely on it."]


def tune(
    base: Experiment,
    *,
    trials: int | None = None,
    budget: float | None = None,
    space: Iterable[str] = (),
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
) -> Tuning:
    """Search the settings of an experiment on validation samples; test samples decide nothing.

    Args:
        base: where the search begins; its own settings are the first trial.
        trials: how many settings to try; without a budget, 20.
        budget: seconds after which no trial is begun or continued.
        space: what to search beside or instead of the defaults, such as ``"train.lr=log:1e-3..1"``.
        out: the folder of the search; that of an earlier one continues it.
        data_dir: the folder of public data sets.
        watch: returns observers that display the run with this title.

    Returns:
        The trials, the best settings and an experiment with them. The same number of trials gives the same answer,
        killed in the middle or not.
    """
    optuna = _optuna()
    began = time.monotonic()
    base = resolve_all(with_validation(base))
    metric = prepare(base, data_folder(data_dir)).plan.metric
    dimensions = find_space(base, space)
    for d in dimensions:  # a wrong name or value is refused before the first trial
        for value in (d.low, d.high) if not d.choices else d.choices:
            _with_settings(base, {d.name: int(value) if d.scale == "int" else value})
    folder = Path(out) if out else free_folder(f"tune-{Path(base.method.name).stem}-{base.data.name}")
    study = _study(optuna, folder, base, dimensions, metric)
    limit = trials if trials is not None else (TRIALS if budget is None else 10**6)
    deadline = None if budget is None else began + budget
    while trial := _next_trial(optuna, study, base, dimensions, limit, deadline):
        settings = {d.name: d.suggest(trial) for d in dimensions}
        name = f"trial-{trial.number:03d}"
        with watch(f"trial {trial.number}") as observers, _judge_trial(optuna, study, trial, metric, deadline) as judge:
            judge.catch_up(folder / name)
            run = run_or_resume(
                _with_settings(base, settings), folder / name, data_dir=data_dir, observers=[*observers, judge.observe]
            )
            if not run.complete:
                raise RunError(f"{run.path} ended early ({run.ended}): tune again into {folder} to continue.")
            judge.finish(run)
    return _finish(optuna, study, folder, base, dimensions, metric)


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
    known = [values for m in MOMENTS if (values := row.get(m)) and values.get(metric.validation) is not None]
    return float(known[0][metric.validation]) if known and figures(row, _moment(row), metric) else None


def _moment(row: Any) -> str:
    return next((m for m in MOMENTS if m in row), "pre")


class BudgetSpentError(Exception):
    """The budget is used up; the trial continues in the next session."""


class _Judge:
    """Reports a trial's scores to Optuna, and ends it where others did better."""

    def __init__(self, optuna: Any, study: Any, trial: Any, metric: Metric, deadline: float | None) -> None:
        self.optuna = optuna
        self.study = study
        self.trial = trial
        self.metric = metric
        self.deadline = deadline

    def catch_up(self, folder: Path) -> None:
        """Report the rounds of an earlier session: it may have been killed after it stored a round."""
        for row in Run(folder).rounds if (folder / "manifest.json").exists() else ():
            self._report(row)

    def observe(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            self._report(event.row)
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise BudgetSpentError

    def _report(self, row: Round) -> None:
        score = validation_score(row, self.metric)
        known = self.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values
        if score is None or row["round"] in known:
            return
        self.trial.report(self.metric.gain(score, 0.0), row["round"])
        if self.trial.should_prune():
            raise self.optuna.TrialPruned

    def finish(self, run: Run) -> None:
        score = validation_score(run.rounds[-1], self.metric)
        self.study.tell(self.trial, DIVERGED if score is None else self.metric.gain(score, 0.0))


@contextmanager
def _judge_trial(optuna: Any, study: Any, trial: Any, metric: Metric, deadline: float | None) -> Iterator[_Judge]:
    with suppress(BudgetSpentError):  # the trial stays open, and the search ends by its deadline
        try:
            yield _Judge(optuna, study, trial, metric, deadline)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def _optuna() -> Any:
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("tune needs Optuna: pip install 'headwise[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _study(optuna: Any, folder: Path, base: Experiment, space: Sequence[Dimension], metric: Metric) -> Any:
    """The search in this folder, new or continued; refuses a folder that holds another one."""
    about = {"experiment": base.plain(), "space": [str(d) for d in space], "metric": metric.name}
    path = folder / "tune.json"
    if path.exists() and (before := read_json(path)) != about:
        keys = [k for k in about if before.get(k) != about[k]] if isinstance(before, dict) else [*about]
        raise ConfigError(f"{folder} holds another search (its {', '.join(keys)} differ): choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, about)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "optuna.log")))
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(base.rounds // 8, 1), reduction_factor=3)
    return optuna.create_study(
        storage=storage, study_name="tune", direction="maximize", pruner=pruner, load_if_exists=True
    )


def _next_trial(
    optuna: Any, study: Any, base: Experiment, space: Sequence[Dimension], limit: int, deadline: float | None
) -> Any:
    """The trial that was interrupted, or a new one; None if the search has ended."""
    if deadline is not None and time.monotonic() > deadline:
        return None
    states = optuna.trial.TrialState
    for t in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if t.params.keys() == {d.name for d in space}:
            return optuna.trial.Trial(study, t._trial_id)
        study.tell(t.number, state=states.FAIL)  # killed before it knew its settings
    trials = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.WAITING))
    if len(trials) >= limit:
        return None
    # each trial has a sampler of its own, so that a continued search draws what an uninterrupted one would
    study.sampler = optuna.samplers.TPESampler(seed=seed_of(base.seed, "tune", len(trials)) % 2**32)
    if not trials:
        study.enqueue_trial({d.name: v for d in space if d.contains(v := _value(base, d.name))})
    return study.ask()


def _value(base: Experiment, path: str) -> Any:
    """A setting of the experiment; None if it has no such number yet."""
    value: Any = base.plain()
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _with_settings(base: Experiment, settings: dict[str, Any]) -> Experiment:
    experiment = with_settings(base, settings)
    make("method", experiment.method)  # refuses options that the method does not have
    return experiment


def _finish(
    optuna: Any, study: Any, folder: Path, base: Experiment, space: Sequence[Dimension], metric: Metric
) -> Tuning:
    states = optuna.trial.TrialState
    trials: list[dict[str, Any]] = []
    for t in study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED)):
        value = t.value if t.state == states.COMPLETE else t.intermediate_values.get(t.last_step)
        trials.append(
            {
                "number": t.number,
                "settings": dict(t.params),
                "score": None if value in (None, DIVERGED) else metric.gain(value, 0.0),
                "state": "diverged" if value == DIVERGED else t.state.name.lower(),
                "rounds": len(Run(folder / f"trial-{t.number:03d}").rounds),
            }
        )
    complete = [t for t in trials if t["state"] == "complete"]
    if not complete:
        raise RunError(f"no trial in {folder} has ended with a score: give it a larger budget, or fewer rounds.")
    importances = optuna.importance.get_param_importances(study) if len(complete) >= 2 * len(space) + 2 else {}
    shares = {name: float(share) for name, share in importances.items()}
    best = best_trial(trials, metric)
    result = Tuning(folder, metric, space, trials, shares, _with_settings(base, best["settings"]))
    write_json(folder / "result.json", result.plain())
    write_bytes(folder / "tuning.md", "\n".join([to_markdown(result.table()), *result.words(), ""]).encode())
    write_bytes(folder / "best.toml", experiment_toml(result.experiment).encode())
    return result


def experiment_toml(experiment: Experiment) -> str:
    """A file for ``headwise run`` with the settings that differ from the defaults."""
    now = experiment.plain()
    values = {k: v for k, v in difference(now, Experiment().plain()).items() if k != "engine"}
    values |= {k: now[k] for k in ("method", "data", "partition", "model", "server_model") if k in values}
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())


def _is_at_edge(d: Dimension, value: Any) -> bool:
    if d.scale == "choice" or value is None:
        return False
    if d.scale == "int":
        return value in (d.low, d.high)
    if d.scale == "log":
        return not d.low * 1.25 <= value <= d.high / 1.25
    margin = 0.05 * (d.high - d.low)
    return not d.low + margin <= value <= d.high - margin


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
