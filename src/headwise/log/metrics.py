"""The registry of metrics. To add one, extend `OURS` or declare an entry point ``headwise.metrics`` in your package.

Lines, summaries, tables, trackers and site messages iterate over `metrics()`. A missing metric was not measured: it is
not defined for a client's samples, or nobody asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigError
from ..settings.options import TASKS
from .predictions import Predictions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import numpy as np

Score = dict[str, float]
"""one model on one client's samples: their number ``n`` and the measured metrics by name"""

TAKEN = {
    "n", "clients", "samples", "untrained", "last", "best", "best_round", "last_ten", "selected", "selected_round",
    "std", "run", "method", "data", "partition", "seed", "rounds", "metric", "floor", "seconds", "privacy", "failed",
    "ended", "lines",
}  # fmt: skip
"""other keys of the lines and summaries, which no metric may use"""
DEFAULTS: Mapping[str, str] = dict(zip(TASKS, ("accuracy", "accuracy", "rmse", "iou"), strict=True))
"""the metric that judges a run, by task, unless the experiment names another"""


LESS = "(less is better)"


def weighted(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over all samples of all clients."""
    return float((values * n).sum() / n.sum())


def mean(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over clients, regardless of how many samples each has."""
    return float(values.mean())


def spread(values: np.ndarray, n: np.ndarray) -> float:
    return float(values.std())


def rooted(values: np.ndarray, n: np.ndarray) -> float:
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
    over: Callable[[np.ndarray, np.ndarray], float]
    """combines the clients' values, given their sample counts"""
    better: Literal["up", "down"] = "up"
    form: Callable[[float], str] = percent
    """formats it for tables"""
    column: bool = True
    """whether tables and printed summaries show it; files hold every metric"""
    tasks: tuple[str, ...] = TASKS[:1]
    """where it applies"""
    usual: bool = True
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


def _accuracy(said: Predictions) -> float:
    """Of samples, labels or pixels."""
    both, true, guess = said.hits
    if said.task == "multilabel":
        labels = said.n * len(both)
        return (labels - (true + guess - 2 * both).sum().item()) / labels
    return both.sum().item() / true.sum().item()


def _balanced(said: Predictions) -> float:
    """Mean recall over the classes present in the samples."""
    hits, truth, _ = said.hits
    return (hits[truth > 0] / truth[truth > 0]).mean().item()


def _f1(said: Predictions) -> float | None:
    """Mean F1 over the classes or labels present in samples or predictions."""
    hits, both = said.hits.both, said.hits.true + said.hits.said
    return (2 * hits / both)[both > 0].mean().item() if both.any() else None


def _loss(said: Predictions) -> float:
    """What training minimises, without its options; of a regression in the targets' own units."""
    from torch.nn import functional  # reading a run must not import torch

    if said.task == "multilabel":
        return functional.binary_cross_entropy_with_logits(said.scores, said.targets.float()).item()
    if said.task == "regression":
        return functional.mse_loss(said.scores, said.targets).item()
    return functional.cross_entropy(said.scores, said.targets).item()


def _overlap(name: str) -> Callable[[Predictions], float | None]:
    """One of `formulas` that needs counts alone."""

    def of(said: Predictions) -> float | None:
        from . import formulas

        return getattr(formulas, name)(*(each.tolist() for each in said.hits))

    return of


def _formula(name: str) -> Callable[[Predictions], float | None]:
    """One of `formulas`."""

    def of(said: Predictions) -> float | None:
        import numpy as np  # reading a run must not import it

        from . import formulas

        with np.errstate(all="ignore"):  # the scores of a diverged model overflow
            return getattr(formulas, name)(said.scores.numpy(), said.targets.numpy())

    return of


ACCURACY = Metric(
    "accuracy", "accuracy", _accuracy, weighted, tasks=("classification", "multilabel", "segmentation"), needs="counts"
)
CLIENT_MEAN = Metric("client_mean", "mean over clients", ACCURACY.name, mean, column=False, tasks=TASKS)
CLIENT_STD = Metric("client_std", "spread over clients", ACCURACY.name, spread, "down", tasks=TASKS)
WORST_DECILE = Metric("worst_decile", "worst decile", ACCURACY.name, lowest_tenth, tasks=TASKS)
_CLASSES, _QUANTITIES, _PIXELS = TASKS[:2], TASKS[2:3], TASKS[3:]
OURS = (
    ACCURACY,
    CLIENT_MEAN,
    CLIENT_STD,
    WORST_DECILE,
    Metric("balanced", "balanced accuracy", _balanced, mean, column=False, needs="counts"),
    Metric("f1", "macro F1", _f1, mean, column=False, tasks=_CLASSES, needs="counts"),
    Metric("loss", "loss", _loss, weighted, "down", number, column=False, tasks=TASKS, needs="mean"),
    Metric("auc", "AUC", _formula("auc"), mean, form=number, tasks=_CLASSES, usual=False),
    Metric(
        "average_precision", "average precision", _formula("average_precision"), mean,
        form=number, tasks=_CLASSES, usual=False,
    ),
    Metric(
        "log_loss", "log loss", _formula("log_loss"), weighted, "down", number,
        tasks=_CLASSES, usual=False, needs="mean",
    ),
    Metric("ece", "calibration error", _formula("ece"), mean, "down", tasks=_CLASSES, usual=False),
    Metric("mae", "mean absolute error", _formula("mae"), weighted, "down", number, tasks=_QUANTITIES),
    Metric("rmse", "RMSE", _formula("rmse"), rooted, "down", number, tasks=_QUANTITIES),
    Metric("r2", "R²", _formula("r2"), mean, form=number, tasks=_QUANTITIES),
    Metric("dice", "Dice", _overlap("dice"), mean, tasks=_PIXELS, needs="counts"),
    Metric("iou", "IoU", _overlap("iou"), mean, tasks=_PIXELS, needs="counts"),
)  # fmt: skip


@cache
def metrics() -> tuple[Metric, ...]:
    """All metrics: ours, then those of installed packages in order of their names."""
    from importlib.metadata import entry_points  # slow to import

    points = sorted(entry_points(group="headwise.metrics"), key=lambda point: point.name)
    found = {metric.name: metric for metric in OURS}
    for point in points:
        metric = _loaded(point)
        if metric.name in found:
            raise ConfigError(f"the entry point {point.name} = {point.value!r} is a second metric {metric.name!r}.")
        sources = [name for name, known in found.items() if known.source == name]
        if isinstance(metric.of, str) and metric.of not in sources:
            allowed = ", ".join(sources)
            raise ConfigError(f"metric.of is {metric.of!r} in {point.value!r}, but must be one of {allowed}.")
        found[metric.name] = metric
    return tuple(found.values())


def _loaded(point: EntryPoint) -> Metric:
    try:
        metric = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the metric {point.name} = {point.value!r} can't be loaded: {error}.") from error
    if not isinstance(metric, Metric):
        raise ConfigError(f"the entry point {point.name} = {point.value!r} of headwise.metrics must be a Metric.")
    return metric
