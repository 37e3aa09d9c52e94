"""Digits — Alpaydin, Kaynak, UCI, 1998. https://doi.org/10.24432/C50P49."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from safetensors.numpy import load_file

from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Digits(Source):
    """1,797 tiny grey images (8 × 8) of handwritten digits; no download needed."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Read the copy in this package (scripts/embed_data.py); `folder` is not used."""
        arrays = load_file(Path(__file__).with_name("digits.safetensors"))
        x = (arrays["x"] / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8)  # 0..16 becomes -1..1
        return Dataset(x, arrays["y"].astype(np.int64), tuple("0123456789"))
