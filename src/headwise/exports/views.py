"""Looks into a run's models: which classes they confuse, and a client's features in two dimensions."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..engine.client.scoring import evaluate_model
from ..errors import ConfigError, RunError, explain_missing
from ..runs.query import client_label
from ..tasks.registry import kind_of
from .run_models import Models

Projection = Literal["pca", "tsne"]
MOST = 1000
"""samples that are projected: more can't be told apart on a page"""


class FeatureMap(NamedTuple):
    """A client's test samples in two dimensions."""

    client: str
    how: str
    points: list[tuple[float, float, int]]
    """with the class of each"""


def count_confusion(models: Models) -> list[list[int]]:
    """How often test samples of each class (rows) are taken for each class (columns), by their own clients' models."""
    _check_classes(models)
    classes = len(models.data.dataset.classes)
    counts = np.zeros((classes, classes), np.int64)
    for client in range(len(models.plan.data)):
        test = models.plan.data.client(client).test
        if len(test.y):
            predictions = evaluate_model(models.plan, models.of(client).module, test.x).argmax(1)
            np.add.at(counts, (test.y.numpy(), predictions.numpy()), 1)
    return counts.tolist()


def map_features(models: Models, client: int, projection: str = "pca") -> FeatureMap:
    """The features of a client's test samples, by the body of its own model, in two dimensions."""
    _check_classes(models)
    if projection not in get_args(Projection):
        raise ConfigError(f"projection is {projection!r}, but must be {' or '.join(get_args(Projection))}.")
    name = client_label(client, models.run.names)
    body = getattr(models.of(client).module, "body", None)
    if body is None:
        raise RunError(f"{models.run.method} gives its clients several networks: there are no features of one body.")
    test = models.plan.data.client(client).test
    if len(test.y) < 3:
        raise RunError(f"client {name} has {len(test.y)} test samples, but a picture needs at least 3.")
    features = evaluate_model(models.plan, body, test.x[:MOST]).flatten(1).double().numpy()
    places, how = _project_with_tsne(features) if projection == "tsne" else _project_with_pca(features)
    points = [(float(x), float(y), int(label)) for (x, y), label in zip(places, test.y, strict=False)]
    return FeatureMap(name, how, points)


def _check_classes(models: Models) -> None:
    task = models.run.manifest["experiment"]["task"]
    if not kind_of(task).one_class:
        raise ConfigError(f"task is {task!r}, but confusion and features need one class per sample.")


def _project_with_pca(features: NDArray[Any]) -> tuple[NDArray[Any], str]:
    centred = features - features.mean(0)
    _, widths, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(1)])[:, None]  # or the signs are the library's
    share = float((widths[:2] ** 2).sum() / max((widths**2).sum(), 1e-30))
    places = centred @ two.T
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1]))), f"PCA, {share:.0%} of the variance"


def _project_with_tsne(features: NDArray[Any]) -> tuple[NDArray[Any], str]:
    with explain_missing("projection is 'tsne', which needs scikit-learn: pip install scikit-learn."):
        from sklearn.manifold import TSNE  # pyright: ignore[reportMissingImports]
    nearest = min(30.0, (len(features) - 1) / 3)
    return TSNE(perplexity=nearest, init="pca", random_state=0).fit_transform(features), "t-SNE"
