"""MNIST — LeCun, Cortes, Burges, 1998. http://yann.lecun.com/exdb/mnist/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..dataset import Dataset, Source
from ..files import locate
from .images import make_idx_layout, merge, read_pair

FILES = make_idx_layout(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    homes=("mnist", "MNIST/raw", "MNIST"),
    unique_names=True,
)


@dataclass(frozen=True)
class MNIST(Source):
    """70,000 grey images (28 × 28) of handwritten digits."""

    def load(self, folder: Path) -> Dataset:
        """Read the four idx files."""
        classes = tuple("0123456789")
        x, y, test_x, test_y = locate(folder, FILES)
        return merge([read_pair(x, y, 10)], [read_pair(test_x, test_y, 10)], classes)
