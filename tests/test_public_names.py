"""The names that a user imports: what each does, its arguments, what it returns, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import headwise as hw
from data_frames import Frame

ORDER = (
    *("Experiment", "run", "Run", "resume", "compare", "choose", "tune", "fit"),
    *("TrainedModel", "load_model", "Models", "split", "HeadwiseError"),
    *("PersonalizedClassifier", "PersonalizedRegressor"),
)
"""later examples use what earlier ones made"""


def hospitals() -> dict[str, Any]:
    """What the examples assume: two clients, and a table of three hospitals, whose diagnoses are easy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = np.where(x[:, 0] > 0, "ill", "healthy")
    x[:, 0] += np.where(y == "ill", 2.0, -2.0)
    columns = {f"x{k}": [*x[:, k]] for k in range(3)}
    names = [f"h{i % 3}" for i in range(60)]
    frame = Frame(**columns, hospital=names, ill=[*y])
    patients = np.array([[-3.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    return {
        **{"x": x, "y": y, "x2": x + 0.1, "y2": y, "frame": frame, "nn": nn, "hospitals": names},
        **{"patients": patients, "diagnoses": np.array(["healthy", "ill"])},
    }


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(ORDER) == sorted(hw.__all__)
    names = {**hospitals(), **{name: getattr(hw, name) for name in hw.__all__}}
    for name in ORDER:
        text = inspect.getdoc(getattr(hw, name)) or ""
        examples = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
        assert examples.examples, f"{name} has no example"
        printed: list[str] = []
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            examples, out=printed.append, clear_globs=False
        )
        names.update(examples.globs)
        assert result.failed == 0, "".join(printed)


@pytest.mark.parametrize("name", [name for name in hw.__all__ if inspect.isfunction(getattr(hw, name))])
def test_functions_name_every_argument_and_what_they_return(name: str) -> None:
    function = getattr(hw, name)
    text = inspect.getdoc(function) or ""
    assert "\nArgs:\n" in text and "\nReturns:\n" in text
    missing = [
        p for p in inspect.signature(function).parameters if f"\n    {p}: " not in text and f"\n    **{p}: " not in text
    ]
    assert missing == []
