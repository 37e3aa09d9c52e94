"""Fashion-MNIST — Xiao, Rasul, Vollgraf, 2017. https://arxiv.org/abs/1708.07747."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..dataset import Dataset, Source, merge_parts
from ..files import locate
from .mnist import make_idx_layout, read_pair

FILES = make_idx_layout(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    homes=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
    unique_names=False,  # the files are named like MNIST's
)

CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


@dataclass(frozen=True)
class FashionMNIST(Source):
    """70,000 grey images (28 × 28) of clothes, in MNIST's format."""

    def load(self, folder: Path) -> Dataset:
        """Read the four idx files."""
        x, y, test_x, test_y = locate(folder, FILES)
        return merge_parts([read_pair(x, y, 10), read_pair(test_x, test_y, 10)], CLASSES)
