"""Digits — Alpaydin, Kaynak, UCI, 1998. https://doi.org/10.24432/C50P49."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Digits(Source):
    """1,797 tiny grey images (8 × 8) of handwritten digits; no download needed."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Load the copy in scikit-learn; `folder` is not used."""
        from sklearn.datasets import load_digits  # slow to import

        images, labels = load_digits(return_X_y=True)
        x = (images / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8)  # 0..16 becomes -1..1
        return Dataset(x, labels.astype(np.int64), tuple("0123456789"))
