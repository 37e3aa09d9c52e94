"""The registry of metrics. To add one, extend `OURS` or declare an entry point ``headwise.metrics`` in your package.

Lines, summaries, tables, trackers and site messages iterate over `metrics()`. A missing metric was not measured: an
older Headwise, or a site that does not have it, wrote the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import numpy as np
    from torch import Tensor

Score = dict[str, float]
"""one model on one client's samples: their number ``n`` and the measured metrics by name"""

TAKEN = {
    "n", "clients", "samples", "untrained", "val_accuracy", "last", "best", "best_round", "last_ten", "selected",
    "selected_round", "std",
}  # fmt: skip
"""other keys of the lines and summaries, which no metric may use"""


class Predictions:
    """A model's scores for one client's samples, and their labels."""

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        self.scores, self.labels = scores, labels
        """[n, classes] and [n]"""

    @cached_property
    def confusion(self) -> Tensor:
        """Sample counts: true classes by row, predicted ones by column."""
        classes = self.scores.shape[1]
        pairs = self.labels * classes + self.scores.argmax(1)
        return pairs.bincount(minlength=classes * classes).view(classes, classes).double()


def weighted(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over all samples of all clients."""
    return float((values * n).sum() / n.sum())


def mean(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over clients, regardless of how many samples each has."""
    return float(values.mean())


def spread(values: np.ndarray, n: np.ndarray) -> float:
    return float(values.std())


def lowest_tenth(values: np.ndarray, n: np.ndarray) -> float:
    """Mean over the tenth of the clients with the lowest values, at least one client."""
    return float(values[values.argsort()][: max(1, len(values) // 10)].mean())


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

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in TAKEN:
            raise ConfigError(f"metric.name is {self.name!r}, but must be an identifier other than {sorted(TAKEN)}.")

    @property
    def heading(self) -> str:
        """The heading of its column, which says so if less is better."""
        return self.label if self.better == "up" else f"{self.label} (less is better)"

    @property
    def source(self) -> str:
        """The key in a client's `Score` that it combines."""
        return self.of if isinstance(self.of, str) else self.name


def _accuracy(said: Predictions) -> float:
    return said.confusion.diag().sum().item() / len(said.labels)


def _balanced(said: Predictions) -> float:
    """Mean recall over the classes present in the samples."""
    hits, truth = said.confusion.diag(), said.confusion.sum(1)
    return (hits[truth > 0] / truth[truth > 0]).mean().item()


def _f1(said: Predictions) -> float:
    """Mean F1 over the classes present in samples or predictions."""
    hits, both = said.confusion.diag(), said.confusion.sum(1) + said.confusion.sum(0)
    return (2 * hits / both)[both > 0].mean().item()


def _loss(said: Predictions) -> float:
    from torch.nn.functional import cross_entropy  # reading a run must not import torch

    return cross_entropy(said.scores, said.labels).item()


ACCURACY = Metric("accuracy", "accuracy", _accuracy, weighted)
"""the metric of the curves, and by which the best round is chosen"""
CLIENT_MEAN = Metric("client_mean", "mean over clients", ACCURACY.name, mean, column=False)
CLIENT_STD = Metric("client_std", "spread over clients", ACCURACY.name, spread, "down", column=False)
WORST_DECILE = Metric("worst_decile", "worst decile", ACCURACY.name, lowest_tenth)
OURS = (
    ACCURACY,
    CLIENT_MEAN,
    CLIENT_STD,
    WORST_DECILE,
    Metric("balanced", "balanced accuracy", _balanced, mean, column=False),
    Metric("f1", "macro F1", _f1, mean, column=False),
    Metric("loss", "loss", _loss, weighted, "down", number, column=False),
)
VALIDATION = f"val_{ACCURACY.name}"
"""the accuracy on validation samples, beside the metrics on test samples"""


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


def extras() -> list[Metric]:
    """The metrics that tables show beside accuracy."""
    return [metric for metric in metrics() if metric.column and metric is not ACCURACY]


def _loaded(point: EntryPoint) -> Metric:
    try:
        metric = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the metric {point.name} = {point.value!r} can't be loaded: {error}.") from error
    if not isinstance(metric, Metric):
        raise ConfigError(f"the entry point {point.name} = {point.value!r} of headwise.metrics must be a Metric.")
    return metric


def restored(given: Mapping[str, Any] | None) -> Score | None:
    """A score read from JSON, where null means not finite; drops metrics that are not installed here."""
    if given is None:
        return None
    read = {m.name: given[m.name] for m in metrics() if m.name in given}
    found = {name: math.nan if value is None else float(value) for name, value in read.items()}
    if not math.isfinite(found.get(ACCURACY.name, 0.0)):
        raise ValueError(f"{ACCURACY.name} is {given[ACCURACY.name]!r}")
    return {"n": int(given["n"]), **found}
