"""Write the small data set that the package carries, from scikit-learn's copy: python scripts/embed_data.py

So neither it nor the demo needs scikit-learn, or a network. tests/data/test_sources.py compares both copies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

FILE = Path(__file__).parents[1] / "src" / "headwise" / "data" / "sources" / "digits.safetensors"


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)  # counts of ink from 0 to 16 in each of 8 x 8 cells
    save_file({"x": images.astype(np.uint8).reshape(-1, 8, 8), "y": labels.astype(np.uint8)}, FILE)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
