"""Write the two small data sets that the package carries, from scikit-learn's copies: python scripts/embed_data.py

So neither they nor the demo need scikit-learn, or a network. tests/data/test_embedded.py compares both copies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_diabetes, load_digits

FOLDER = Path(__file__).parents[1] / "src" / "headwise" / "data" / "sources"


def digits() -> dict[str, np.ndarray]:
    """Counts of ink from 0 to 16 in each of 8 x 8 cells."""
    images, labels = load_digits(return_X_y=True)
    return {"x": images.astype(np.uint8).reshape(-1, 8, 8), "y": labels.astype(np.uint8)}


def diabetes() -> dict[str, np.ndarray]:
    """Columns with standard deviation 1, computed here so that they have the same bits everywhere."""
    x, y = map(np.asarray, load_diabetes(return_X_y=True))
    x *= np.sqrt(len(x))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


if __name__ == "__main__":
    for made in (digits, diabetes):
        path = FOLDER / f"{made.__name__}.safetensors"
        save_file(made(), path)
        print(f"{path}: {path.stat().st_size:,} bytes")
