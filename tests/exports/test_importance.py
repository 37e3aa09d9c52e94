"""Permutation importance, per client: features that a client's model needs come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.errors import ConfigError, DataError

N = 240


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """At va the ward decides, at rome the pulse."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "site": np.array(["va", "rome"])[np.arange(N) % 2],
            "ward": rng.choice(["a", "b", "c"], N),
            "pulse": rng.normal(size=N),
            "noise": rng.normal(size=N),
        }
    )
    frame["ill"] = np.where(frame["site"] == "va", frame["ward"] == "a", frame["pulse"] > 0)
    return frame


@pytest.fixture(scope="module")
def run(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> hw.Run:
    out = tmp_path_factory.mktemp("importance") / "run"
    return hw.fit(table, client="site", target="ill", method="standalone", rounds=30, lr=0.3, out=out, quiet=True)


def test_each_client_has_its_own_features(run: hw.Run) -> None:
    va = run.importance("va")
    assert va.rows[0].feature == "ward"
    assert run.importance("rome").rows[0].feature == "pulse"
    assert va.score == run.model("va").card["metrics"]["test"]["accuracy"]
    assert va.samples == len(run.rows("va").index)
    assert va.rows[0].mean > 0.2 > abs(va.rows[-1].mean)
    assert str(va).splitlines()[1].startswith("  ward ")
    assert va.frame().loc["ward", "mean"] == va.rows[0].mean
    assert len(va) == 3


def test_the_same_by_hand(run: hw.Run, table: pd.DataFrame) -> None:
    """The shuffles of one feature, done again on the raw table."""
    rows = table.iloc[run.rows("va").index]
    model = run.model("va")
    rng = np.random.default_rng(3)
    losses = list[float]()
    for _ in range(4):
        shuffled = rows.assign(ward=rows["ward"].to_numpy()[rng.permutation(len(rows))])
        losses.append(model.score(rows, rows["ill"]) - model.score(shuffled, rows["ill"]))
    for measured in (run.importance("va", repeats=4, seed=3), model.importance(rows, rows["ill"], repeats=4, seed=3)):
        ward = next(row for row in measured if row.feature == "ward")
        assert ward.mean == pytest.approx(np.mean(losses))
        assert ward.std == pytest.approx(np.std(losses))


def test_errors_of_quantities_grow(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = 3 * x[:, 1]
    run = hw.fit({"a": (x, y), "b": (x, y)}, rounds=20, lr=0.1, out=tmp_path / "run", quiet=True)
    first, second = run.importance("a")
    assert (first.feature, second.feature) == ("1", "0")
    assert first.mean > 1 > abs(second.mean)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"part": "val"}, r"client 0 \(va\) has no val samples: choose another part of train, val, test"),
        ({"repeats": 0}, "repeats is 0, but must be a whole number from 1"),
        ({"part": "some"}, "part is 'some', but must be one of train, val, test"),
    ],
)
def test_mistakes(run: hw.Run, options: dict[str, Any], problem: str) -> None:
    with pytest.raises((ConfigError, DataError), match=problem):
        run.importance("va", **options)


def test_images_have_no_features(tmp_path: Path) -> None:
    pictures = np.zeros((8, 1, 8, 8), np.uint8)
    clients: dict[str, Any] = {name: (pictures, np.arange(8) % 2) for name in ("a", "b")}
    run = hw.fit(clients, rounds=1, out=tmp_path / "run", quiet=True)
    with pytest.raises(DataError, match="importance needs samples with features"):
        run.importance("a")
