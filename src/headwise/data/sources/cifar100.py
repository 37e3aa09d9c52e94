"""CIFAR-100 — Krizhevsky, 2009. https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..dataset import Dataset, Source, merge_parts
from ..files import Download, Layout, locate
from .cifar10 import read_batch, read_names

FILES = Layout(
    ("cifar-100-python", "cifar-100", "cifar-100/cifar-100-python"),
    ("train", "test", "meta"),
    (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
)


@dataclass(frozen=True)
class CIFAR100(Source):
    """60,000 colour images (32 × 32) of a hundred kinds of things, which form twenty groups."""

    labels: Literal["fine", "coarse"] = "fine"
    "which labels to learn: the 100 kinds (fine) or the 20 groups (coarse)"

    def load(self, folder: Path) -> Dataset:
        """Read the two python batches and the label names."""
        train, test, meta = locate(folder, FILES)
        classes = read_names(meta, f"{self.labels}_label_names", 100 if self.labels == "fine" else 20)
        parts = [read_batch(path, f"{self.labels}_labels", len(classes)) for path in (train, test)]
        return merge_parts(parts, classes)
