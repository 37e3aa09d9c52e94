"""Diabetes — Efron, Hastie, Johnstone, Tibshirani, Annals of Statistics 2004. https://doi.org/10.1214/009053604000000067"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors.numpy import load_file

from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Diabetes(Source):
    """A regression: how far the disease of 442 patients went in a year, from ten measurements; no download."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Read the copy in this package (scripts/embed_data.py); `folder` is not used."""
        found = load_file(Path(__file__).with_name("diabetes.safetensors"))
        return Dataset(found["x"], found["y"].reshape(-1, 1), ("progression",), task="regression")
