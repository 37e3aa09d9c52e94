"""The data sets in the package are those that scikit-learn has, and need nothing but numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from headwise.data.sources.diabetes import Diabetes
from headwise.data.sources.digits import Digits


def test_digits_are_scikit_learns() -> None:
    images, labels = load_digits(return_X_y=True)
    got = Digits().load(Path())
    assert np.array_equal(got.x, (images / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8))
    assert np.array_equal(got.y, labels)


def test_diabetes_are_scikit_learns() -> None:
    """To rounding: its sums over columns need not be ours on every CPU, so the package has the sums' results."""
    x, y = map(np.asarray, load_diabetes(return_X_y=True))
    got = Diabetes().load(Path())
    np.testing.assert_allclose(got.x, x * np.sqrt(len(x)), rtol=1e-6)
    assert np.array_equal(got.y[:, 0], y)


def test_embedded_data_need_no_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nfrom headwise.data.sources import diabetes, digits\n"
    code += (
        "from pathlib import Path\nprint(len(digits.Digits().load(Path()).y), len(diabetes.Diabetes().load(Path()).y))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1797", "442"], done.stderr
