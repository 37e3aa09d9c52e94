"""What real tables had that toy data had not: large units, whole delays, times in seconds, labels as a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import headwise as hw
from headwise.errors import ConfigError, DataError

N = 400
RNG = np.random.default_rng(5)
FRAME = pd.DataFrame(
    {
        "island": np.array(["a", "b"])[np.arange(N) % 2],
        "bill": RNG.normal(size=N),
        "flipper": RNG.normal(200, 14, N),
        "sex": RNG.choice(["m", "f"], N),
    }
)
MASS = FRAME["flipper"] * 20 + FRAME["bill"] * 100


def fit(frame: pd.DataFrame, out: Path, **options: Any) -> hw.Run:
    return hw.fit(frame, **{"client": "island", "target": "y", "rounds": 3, "out": out, "quiet": True, **options})


def test_quantities_in_large_units_can_be_exported(tmp_path: Path) -> None:
    """Grams: the last digit of float32 is more than an absolute tolerance allows."""
    frame = FRAME.assign(y=MASS * 100)
    model = fit(frame, tmp_path / "run").model("a")
    for format in ("onnx", "torch"):
        loaded = hw.load_model(model.save(tmp_path / format, format))
        np.testing.assert_allclose(loaded.predict(frame), model.predict(frame), rtol=1e-5)


def input_type(folder: Path) -> str:
    return onnxruntime.InferenceSession(str(folder / "model.onnx")).get_inputs()[0].type


def test_programs_take_float32(tmp_path: Path) -> None:
    model = fit(FRAME.assign(y=FRAME["bill"] > 0), tmp_path / "run").model("a")
    folder = model.save(tmp_path / "model")
    assert input_type(folder) == "tensor(float)"
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    x = model.encode(FRAME).astype(np.float32)
    scores, probabilities = session.run(["scores", "probabilities"], {"x": x})
    np.testing.assert_allclose(np.asarray(probabilities), model.predict_proba(FRAME), atol=1e-5)
    assert np.asarray(scores).shape == (N, 2)


def test_programs_take_float64_where_float32_would_lose_digits(tmp_path: Path) -> None:
    frame = FRAME.assign(time=1.6e9 + RNG.random(N) * 86_400, y=FRAME["bill"] > 0)
    model = fit(frame, tmp_path / "run").model("a")
    folder = model.save(tmp_path / "model")
    assert input_type(folder) == "tensor(double)"
    np.testing.assert_allclose(hw.load_model(folder).predict_proba(frame), model.predict_proba(frame), atol=1e-5)


def test_times_that_can_not_be_standardized_are_refused(tmp_path: Path) -> None:
    """They were taken for constants, unscaled: the network's outputs became NaN."""
    frame = FRAME.assign(time=1.6e9 + RNG.random(N) * 3600, y=FRAME["bill"] > 0)
    with pytest.raises(DataError, match=r"column 'time' has numbers from 16000000\d\d to 16000035\d\d, which"):
        fit(frame, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert fit(frame.assign(time=frame["time"] - 1.6e9), tmp_path / "run").complete
    assert fit(frame.assign(time=1.6e9), tmp_path / "constant").complete


def test_whole_delays_are_quantities(tmp_path: Path) -> None:
    """Early flights have negative ones; classes do not."""
    delays = np.tile(np.arange(-10, 15), N // 25)
    assert fit(FRAME.assign(y=delays.astype(float)), tmp_path / "run").manifest["experiment"]["task"] == "regression"
    classes = fit(FRAME.assign(y=delays + 10), tmp_path / "classes")
    assert classes.manifest["experiment"]["task"] == "classification"


def test_labels_as_a_column_can_be_scored(tmp_path: Path) -> None:
    """As MATLAB files have them."""
    x = FRAME[["bill", "flipper"]].to_numpy()
    y = (x[:, :1] > 0).astype(np.uint8)
    model = hw.fit({"a": (x, y), "b": (x, y)}, rounds=1, out=tmp_path / "run", quiet=True).model("a")
    assert model.score(x, y) == model.score(x, y[:, 0])
    assert model.score(x, pd.DataFrame(y)) == model.score(x, y[:, 0])
    with pytest.raises(DataError, match=r"y has the shape \[400, 2\], but must have one label for each sample"):
        model.score(x, np.hstack([y, y]))


def test_infinite_numbers_of_a_table_are_refused_like_those_of_arrays(tmp_path: Path) -> None:
    """They became gaps, which were filled with the mean."""
    spoiled = FRAME.assign(bill=FRAME["bill"].where(FRAME.index != FRAME.index[3], np.inf))
    with pytest.raises(DataError, match=r"clients has infinite numbers in column 'bill', in row 3\."):
        hw.fit(spoiled, client="island", target="sex", rounds=1, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_no_file_that_the_user_never_saw(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        hw.fit(FRAME, client="sex", target="sex", rounds=1, out=tmp_path / "run")
    assert str(error.value).startswith("'sex' is named twice: a column can only be a feature, a target")
