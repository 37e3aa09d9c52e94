"""The registry of metrics, what they are computed from, and which of them a run measures and shows.

To add one, extend `OURS` or declare an entry point ``headwise.metrics`` in your package. Lines, summaries, tables,
trackers and site messages iterate over `metrics()`. A missing metric was not measured: it is not defined for a client's
samples, or the experiment did not list it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import add
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import ConfigError, nearest
from ..tasks.base import DEFAULT, Task, TaskKind
from ..tasks.registry import TASKS, kind_of, objective_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import numpy as np
    from torch import Tensor

Score = dict[str, float]
"""one model on one client's samples: their number ``n`` and the measured metrics by name"""

TAKEN = {
    "n", "clients", "samples", "untrained", "last", "best", "best_round", "last_ten", "selected", "selected_round",
    "std", "run", "method", "data", "partition", "seed", "rounds", "metric", "floor", "seconds", "privacy", "failed",
    "ended", "lines",
}  # fmt: skip
"""other keys of the lines and summaries, which no metric may use"""
LESS = "(less is better)"


class Hits(NamedTuple):
    """How often each class or label is both predicted and true, true, and predicted: of samples or pixels."""

    both: Tensor
    true: Tensor
    predicted: Tensor


class Predictions:
    """A model's scores for one client's samples, and their targets; `formulas` has their shapes."""

    def __init__(self, scores: Tensor, targets: Tensor, task: str = DEFAULT) -> None:
        self.scores = scores
        self.targets = targets
        self.kind = kind_of(task)
        self.n = len(targets)

    @property
    def labels(self) -> Tensor:
        """The targets of a classification, [n]."""
        return self.targets

    @cached_property
    def confusion(self) -> Tensor:
        """Counts of samples or pixels: true classes by row, predicted ones by column."""
        classes = self.scores.shape[1]
        pairs = (self.targets * classes + self.scores.argmax(1)).flatten()
        return pairs.bincount(minlength=classes * classes).view(classes, classes).double()

    @cached_property
    def hits(self) -> Hits:
        if self.kind.exclusive:
            return Hits(self.confusion.diag(), self.confusion.sum(1), self.confusion.sum(0))
        true = self.targets > 0.5
        predicted = self.scores > 0
        return Hits(*(each.sum(0).double() for each in (true & predicted, true, predicted)))


class Tally(Predictions):
    """The counts of many batches, for metrics that need no scores."""

    def __init__(self, task: str) -> None:
        self.kind = kind_of(task)
        self.n = 0

    def add(self, batch: Predictions) -> None:
        if self.kind.exclusive:
            self.confusion = self.confusion + batch.confusion if self.n else batch.confusion
        elif not self.kind.quantitative:
            self.hits = Hits(*map(add, self.hits, batch.hits)) if self.n else batch.hits
        self.n += batch.n


def weighted(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over all samples of all clients."""
    return float((values * n).sum() / n.sum())


def mean(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over clients, regardless of how many samples each has."""
    return float(values.mean())


def spread(values: np.ndarray, n: np.ndarray) -> float:
    return float(values.std())


def root_mean_square(values: np.ndarray, n: np.ndarray) -> float:
    """Root of the mean square over all samples of all clients."""
    return math.sqrt(weighted(values**2, n))


def lowest_tenth(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over the tenth of the clients with the lowest values, at least one client."""
    return float(values[values.argsort()][: max(1, len(values) // 10)].mean())


def highest_tenth(values: np.ndarray, n: np.ndarray) -> float:
    return -lowest_tenth(-values, n)


def percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def number(value: float) -> str:
    return f"{value:.3f}"


@dataclass(frozen=True)
class Metric:
    """A number for each client, and how to combine them into one."""

    name: str
    """its key in files and messages"""
    label: str
    """its name in tables"""
    of: Callable[[Predictions], float | None] | str
    """computes it for one client, None if undefined; or the name of another metric whose values it combines"""
    aggregate: Callable[[np.ndarray, np.ndarray], float]
    """combines the clients' values, given their sample counts"""
    better: Literal["up", "down"] = "up"
    form: Callable[[float], str] = percent
    """formats it for tables"""
    column: bool = True
    """whether tables and printed summaries show it; files hold every metric"""
    tasks: tuple[str, ...] = (DEFAULT,)
    """where it applies"""
    default: bool = True
    """whether it is measured unless the experiment lists others"""
    needs: Literal["counts", "mean", "all"] = "all"
    """what suffices for many batches: their counts, its mean over them, or nothing but all scores"""

    def __post_init__(self) -> None:
        taken = self.name in TAKEN or self.name.startswith("val_") or self.name.endswith("_clients")
        if not self.name.isidentifier() or taken:
            raise ConfigError(
                f"metric.name is {self.name!r}, but must be an identifier without val_ or _clients, other than "
                f"{sorted(TAKEN)}."
            )

    def __repr__(self) -> str:
        return f"<Metric {self.name}>"

    @property
    def heading(self) -> str:
        """The heading of its column, which says so if less is better."""
        return self.label if self.better == "up" else f"{self.label} {LESS}"

    @property
    def source(self) -> str:
        """The key in a client's `Score` that it combines."""
        return self.of if isinstance(self.of, str) else self.name

    @property
    def validation(self) -> str:
        """The key of its value on validation samples, beside the metrics on test samples."""
        return f"val_{self.name}"

    def gain(self, value: float, other: float) -> float:
        """By how much a value is better than another."""
        return value - other if self.better == "up" else other - value

    def span(self, low: float, high: float) -> str:
        """An interval of its values: shares stay within 0 and 1; empty if it is not known."""
        if self.form is percent:
            low = max(low, 0.0)
            high = min(high, 1.0)
        return "" if math.isnan(low) else f"{self.form(low)} to {self.form(high)}"


def _accuracy(p: Predictions) -> float:
    """Of samples, labels or pixels."""
    both, true, predicted = p.hits
    if p.kind.exclusive:
        return both.sum().item() / true.sum().item()
    labels = p.n * len(both)
    return (labels - (true + predicted - 2 * both).sum().item()) / labels


def _mean_recall(p: Predictions) -> float:
    """Mean recall over the classes present in the samples."""
    both, true, _ = p.hits
    return (both[true > 0] / true[true > 0]).mean().item()


def _f1(p: Predictions) -> float | None:
    """Mean F1 over the classes or labels present in samples or predictions."""
    either = p.hits.true + p.hits.predicted
    return (2 * p.hits.both / either)[either > 0].mean().item() if either.any() else None


def _loss(p: Predictions) -> float:
    """What training minimizes, without its options; of a regression in the targets' own units."""
    task = Task((), p.scores.shape[1], kind=p.kind.name)
    return objective_of(task).loss(p.scores, p.targets).item()


def _overlap(name: str) -> Callable[[Predictions], float | None]:
    """One of `formulas` that needs counts alone."""

    def of(p: Predictions) -> float | None:
        from . import formulas

        return getattr(formulas, name)(*(each.tolist() for each in p.hits))

    return of


def _formula(name: str) -> Callable[[Predictions], float | None]:
    """One of `formulas`."""

    def of(p: Predictions) -> float | None:
        import numpy as np  # reading a run must not import it

        from . import formulas

        with np.errstate(all="ignore"):  # the scores of a diverged model overflow
            return getattr(formulas, name)(p.scores.numpy(), p.targets.numpy())

    return of


def _tasks(applies: Callable[[TaskKind], bool]) -> tuple[str, ...]:
    """The names of the tasks that fulfil this condition."""
    return tuple(name for name, kind in TASKS.items() if applies(kind))


_ALL = tuple(TASKS)
_CLASSES = _tasks(lambda kind: not kind.quantitative and not kind.per_pixel)
_QUANTITIES = _tasks(lambda kind: kind.quantitative)
_PIXELS = _tasks(lambda kind: kind.per_pixel)
ACCURACY = Metric(
    "accuracy", "accuracy", _accuracy, weighted, tasks=_tasks(lambda kind: not kind.quantitative), needs="counts"
)
CLIENT_MEAN = Metric("client_mean", "mean over clients", ACCURACY.name, mean, column=False, tasks=_ALL)
CLIENT_STD = Metric("client_std", "spread over clients", ACCURACY.name, spread, "down", tasks=_ALL)
WORST_DECILE = Metric("worst_decile", "worst decile", ACCURACY.name, lowest_tenth, tasks=_ALL)
OURS = (
    ACCURACY,
    CLIENT_MEAN,
    CLIENT_STD,
    WORST_DECILE,
    Metric("balanced", "balanced accuracy", _mean_recall, mean, column=False, needs="counts"),
    Metric("f1", "macro F1", _f1, mean, column=False, tasks=_CLASSES, needs="counts"),
    Metric("loss", "loss", _loss, weighted, "down", number, column=False, tasks=_ALL, needs="mean"),
    Metric("auc", "AUC", _formula("auc"), mean, form=number, tasks=_CLASSES, default=False),
    Metric(
        "average_precision", "average precision", _formula("average_precision"), mean,
        form=number, tasks=_CLASSES, default=False,
    ),
    Metric(
        "log_loss", "log loss", _formula("log_loss"), weighted, "down", number,
        tasks=_CLASSES, default=False, needs="mean",
    ),
    Metric("ece", "calibration error", _formula("ece"), mean, "down", tasks=_CLASSES, default=False),
    Metric("mae", "mean absolute error", _formula("mae"), weighted, "down", number, tasks=_QUANTITIES),
    Metric("rmse", "RMSE", _formula("rmse"), root_mean_square, "down", number, tasks=_QUANTITIES),
    Metric("r2", "R²", _formula("r2"), mean, form=number, tasks=_QUANTITIES),
    Metric("dice", "Dice", _overlap("dice"), mean, tasks=_PIXELS, needs="counts"),
    Metric("iou", "IoU", _overlap("iou"), mean, tasks=_PIXELS, needs="counts"),
)  # fmt: skip


@cache
def metrics() -> tuple[Metric, ...]:
    """All metrics: ours, then those of installed packages in order of their names."""
    from importlib.metadata import entry_points  # slow to import

    points = sorted(entry_points(group="headwise.metrics"), key=lambda point: point.name)
    known = {metric.name: metric for metric in OURS}
    for point in points:
        metric = _load(point)
        if metric.name in known:
            raise ConfigError(f"the entry point {point.name} = {point.value!r} is a second metric {metric.name!r}.")
        sources = [name for name, other in known.items() if other.source == name]
        if isinstance(metric.of, str) and metric.of not in sources:
            allowed = ", ".join(sources)
            raise ConfigError(f"metric.of is {metric.of!r} in {point.value!r}, but must be one of {allowed}.")
        known[metric.name] = metric
    return tuple(known.values())


def _load(point: EntryPoint) -> Metric:
    try:
        metric = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the metric {point.name} = {point.value!r} can't be loaded: {error}.") from error
    if not isinstance(metric, Metric):
        raise ConfigError(f"the entry point {point.name} = {point.value!r} of headwise.metrics must be a Metric.")
    return metric


def main_metric(name: str | None, task: str | None) -> Metric:
    """The main metric of a run: the one that its experiment names, or the default of its task."""
    known = {m.name: m for m in metrics() if m.source == m.name}
    name = name or kind_of(task or DEFAULT).default_metric
    if name not in known:
        raise ConfigError(f"evaluate.metric is {name!r}: {nearest(name, known)}")
    return known[name]


def is_majority(metric: Metric, task: str | None) -> bool:
    """Whether a run's floor is the share of each client's most frequent class."""
    return metric is ACCURACY and kind_of(task or DEFAULT).one_class


def metrics_to_measure(task: str, names: Sequence[str], main: str | None) -> list[Metric]:
    """The named metrics, or the defaults of this task; and the main metric."""
    able = {m.name: m for m in metrics() if task in m.tasks and m.source == m.name}
    named = [(f"evaluate.metrics[{k}]", name) for k, name in enumerate(names)]
    for setting, name in [*named, *([("evaluate.metric", main)] if main else [])]:
        if name not in able:
            raise ConfigError(f"{setting} is {name!r}, but the task is {task}: {nearest(name, able)}")
    chosen = {*(names or (m.name for m in able.values() if m.default)), main_metric(main, task).name}
    return [m for m in able.values() if m.name in chosen]


def metrics_over_clients(main: Metric) -> list[Metric]:
    """All metrics; those that show how clients differ do so by the main metric."""
    of: dict[str, Any] = {"of": main.name, "form": main.form}
    worst = replace(WORST_DECILE, better=main.better, **of)
    if main.better == "down":
        worst = replace(worst, aggregate=highest_tenth)
    own = (replace(CLIENT_MEAN, better=main.better, **of), replace(CLIENT_STD, **of), worst)
    return [next((o for o in own if o.name == m.name), m) for m in metrics()]


def extra_columns(main: Metric, names: Sequence[str] = ()) -> list[Metric]:
    """The metrics that tables show next to the main metric, including all of these names."""
    return [m for m in metrics_over_clients(main) if (m.column or m.name in names) and m.name != main.name]
