"""Diabetes — Efron, Hastie, Johnstone, Tibshirani, Annals of Statistics 2004. https://doi.org/10.1214/009053604000000067"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...errors import DataError, explain_missing
from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Diabetes(Source):
    """A regression: how the disease of 442 patients progressed in a year, from ten measurements; needs scikit-learn."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Read scikit-learn's copy, since the data has no licence under which we could ship our own."""
        with explain_missing("diabetes needs scikit-learn, whose copy it reads: pip install scikit-learn.", DataError):
            from sklearn.datasets import load_diabetes
        x, y = map(np.asarray, load_diabetes(return_X_y=True, scaled=False))
        scaled = np.stack([_standardize(column) for column in x.T], axis=1)
        target = y.astype(np.float32).reshape(-1, 1)
        return Dataset(scaled.astype(np.float32), target, ("progression",), task="regression")


def _standardize(column: np.ndarray) -> np.ndarray:
    """With mean 0 and deviation 1; exact sums have the same bits on every CPU."""
    apart = column - math.fsum(column) / len(column)
    return apart / math.sqrt(math.fsum(apart**2) / len(column))
