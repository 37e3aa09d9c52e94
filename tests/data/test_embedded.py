"""Digits in the package and diabetes from scikit-learn are what scikit-learn has."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits

from headwise.data.sources.diabetes import Diabetes
from headwise.data.sources.digits import Digits
from headwise.errors import DataError


def test_digits_are_scikit_learns() -> None:
    images, labels = load_digits(return_X_y=True)
    got = Digits().load(Path())
    assert np.array_equal(got.x, (images / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8))
    assert np.array_equal(got.y, labels)


def test_digits_need_no_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nfrom pathlib import Path\n"
    code += "from headwise.data.sources.digits import Digits\nprint(len(Digits().load(Path()).y))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1797"], done.stderr


def test_diabetes_are_scikit_learns() -> None:
    x, y = map(np.asarray, load_diabetes(return_X_y=True))
    got = Diabetes().load(Path())
    np.testing.assert_allclose(got.x, x * np.sqrt(len(x)), rtol=1e-6)
    assert np.array_equal(got.y[:, 0], y)


def test_diabetes_have_the_same_bits_everywhere() -> None:
    got = Diabetes().load(Path())
    assert hashlib.sha256(got.x.tobytes() + got.y.tobytes()).hexdigest()[:16] == "95901a4a4b0bc373"


def test_diabetes_without_scikit_learn_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="diabetes needs scikit-learn, whose copy it reads: pip install"):
        Diabetes().load(Path())
