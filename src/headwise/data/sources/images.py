"""Shared by the image sources: merges the public training and test sets, scaled to [-1, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..dataset import Dataset

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def merged(train: Sequence[Part], test: Sequence[Part], classes: tuple[str, ...]) -> Dataset:
    """One data set, training samples first."""
    x = np.concatenate([images for images, _ in (*train, *test)])
    y = np.concatenate([labels for _, labels in (*train, *test)])
    is_test = np.arange(len(y)) >= sum(len(labels) for _, labels in train)
    half = (0.5,) * x.shape[1]
    return Dataset(x, y, classes, mean=half, std=half, official_test=is_test)
