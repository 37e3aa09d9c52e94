"""Diabetes — Efron, Hastie, Johnstone, Tibshirani, Annals of Statistics 2004. https://doi.org/10.1214/009053604000000067"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Diabetes(Source):
    """A regression: how far the disease of 442 patients went in a year, from ten measurements; no download."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Take them from scikit-learn, which brings them along; `folder` is not used."""
        from sklearn.datasets import load_diabetes  # slow to import

        x, y = map(np.asarray, load_diabetes(return_X_y=True))
        x *= np.sqrt(len(x))  # columns with standard deviation 1
        return Dataset(x.astype(np.float32), y.astype(np.float32).reshape(-1, 1), ("progression",), task="regression")
