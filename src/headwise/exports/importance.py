"""Permutation importance: how much worse a model gets if the values of one feature are shuffled among samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, pluralize
from ..log.metrics import Metric, main_metric
from .model import TrainedModel
from .quality import score_targets


class Importance(NamedTuple):
    """Of one feature."""

    feature: str
    mean: float
    """by how much the metric gets worse, on average over the shuffles; about 0 if the model does not need it"""
    std: float
    """how much that varies from shuffle to shuffle"""


@dataclass(frozen=True, repr=False)
class Importances:
    """The importance of each feature, the largest first."""

    metric: Metric
    score: float
    """of the samples as they are"""
    samples: int
    rows: tuple[Importance, ...]

    def __iter__(self) -> Iterator[Importance]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        """A table."""
        form = self.metric.form
        width = max(len(row.feature) for row in self.rows)
        head = f"{self.metric.label} {form(self.score)} on {pluralize(self.samples, 'sample')}, without one feature:"
        lines = [f"  {row.feature:{width}}  worse by {form(row.mean)} ± {form(row.std)}" for row in self.rows]
        return "\n".join([head, *lines])

    def frame(self) -> Any:
        """As a pandas DataFrame with the features as its index."""
        try:
            import pandas as pd  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError("frame needs pandas: pip install pandas.") from None
        return pd.DataFrame(list(self.rows), columns=["feature", "mean", "std"]).set_index("feature")


def measure_importance(model: TrainedModel, x: NDArray[Any], y: NDArray[Any], repeats: int, seed: int) -> Importances:
    """Of encoded samples and their targets."""
    if not isinstance(repeats, int) or repeats < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"repeats is {repeats!r}, but must be a whole number from 1.")
    if len(x) < 2:
        raise DataError(f"x has {pluralize(len(x), 'sample')}, but shuffling needs at least two.")
    metric = main_metric(model.card.get("metric"), model.card["task"])
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(x)) for _ in range(repeats)]  # the same for all features
    score = _score(model, metric, x, y)
    rows: list[Importance] = []
    for feature, columns in _list_features(model):
        losses: list[float] = []
        for order in orders:
            shuffled = x.copy()
            shuffled[:, columns] = x[order][:, columns]
            losses.append(metric.gain(score, _score(model, metric, shuffled, y)))
        rows.append(Importance(feature, float(np.mean(losses)), float(np.std(losses))))
    return Importances(metric, score, len(x), tuple(sorted(rows, key=lambda row: -row.mean)))


def _list_features(model: TrainedModel) -> list[tuple[str, slice]]:
    """The name and the columns of each feature in encoded samples."""
    fitted = model.inputs.fitted
    if fitted is not None and fitted.recipe.form == "table":
        return [(column.name, slice(at, at + column.width)) for column, at in fitted.recipe.list_places()]
    if len(model.inputs.shape) != 1 or model.inputs.dtype == "int64":
        raise DataError("importance needs samples with features: a table, or arrays of shape [samples, features].")
    return [(str(k), slice(k, k + 1)) for k in range(model.inputs.shape[0])]


def _score(model: TrainedModel, metric: Metric, x: NDArray[Any], y: NDArray[Any]) -> float:
    scores = score_targets(model, model.answer(x).scores, y)
    if metric.name not in scores:
        raise DataError(f"{metric.label} is not defined for these {len(y)} samples.")
    return scores[metric.name]
