"""What a data scientist expects of `predict`, `score` and `evaluate`, from the outside."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from torch import nn

import headwise as hw
from headwise.cli import main
from headwise.errors import ConfigError, DataError, RunError
from waiting import PATIENCE

ONE_WORKER = {"workers": 1}


def patients(n: int = 240, seed: int = 0) -> pd.DataFrame:
    """Three hospitals; the columns are in another order than their kinds."""
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], n),
            "chol": 200 + 60 * ill + 10 * rng.normal(size=n),
            "hospital": rng.choice(["va", "basel", "lima"], n),
            "age": 50 + rng.normal(size=n),
            "ill": np.where(ill, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return patients()


@pytest.fixture(scope="module")
def run(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> hw.Run:
    out = tmp_path_factory.mktemp("table") / "run"
    return hw.fit(frame, client="hospital", target="ill", method="fedrep", rounds=3, out=out, engine=ONE_WORKER)


def code(*words: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_an_array_has_no_names_of_columns(run: hw.Run, frame: pd.DataFrame) -> None:
    model = run.model("va")
    features = frame[["age", "chol"]]
    with pytest.raises(DataError, match=r"array, whose columns have no names.*columns chol, age, sex"):
        model.predict(features.to_numpy())
    with pytest.raises(DataError, match="whose columns have no names"):
        model.predict(torch.zeros(2, 3))
    turned = frame[frame.columns[::-1]]
    assert (model.predict(frame) == model.predict(turned)).all()


def test_every_row_by_its_own_clients_model(run: hw.Run, frame: pd.DataFrame) -> None:
    predictions = run.predict(frame)
    assert predictions.shape == (len(frame),)
    for name, rows in frame.groupby("hospital"):
        assert (predictions[rows.index] == run.model(name).predict(rows)).all()
    renamed = frame.rename(columns={"hospital": "clinic"})
    assert (run.predict(renamed, client="clinic") == predictions).all()
    assert (run.predict(renamed, client=renamed["clinic"]) == predictions).all()
    with pytest.raises(DataError, match="client is 'hospital', which is not a column of samples"):
        run.predict(renamed)
    with pytest.raises(RunError, match="has no client 'VA'"):
        run.predict(frame.assign(hospital="VA"))


def test_held_out_rows_can_be_had(run: hw.Run, frame: pd.DataFrame) -> None:
    test = run.rows("va", part="test")
    train = run.rows("va", part="train")
    assert set(frame.iloc[test.index]["hospital"]) == {"va"}
    assert not set(test.index) & set(train.index)
    assert len(test.index) + len(train.index) == (frame["hospital"] == "va").sum()
    assert (frame.iloc[test.index]["ill"] == test.y).all()
    va = frame[frame["hospital"] == "va"].reset_index(drop=True)
    assert (va.iloc[test.own]["ill"] == test.y).all()
    held_out = frame.iloc[test.index]
    right = (run.model("va").predict(held_out) == held_out["ill"]).mean()
    assert right == pytest.approx(run.last_scores()["pre"][run.number_of("va")])
    assert run.model("va").score(held_out, held_out["ill"]) == pytest.approx(right)
    with pytest.raises(ConfigError, match="part is 'held', but must be one of train, val, test"):
        run.rows("va", part="held")


def test_scores_and_texts_of_a_run(run: hw.Run) -> None:
    assert run.score(metric="accuracy") == run.accuracy() == run.score()
    assert 0 < run.score(metric="f1") <= 1
    assert run.score("post", metric="balanced") <= 1
    with pytest.raises(ConfigError, match="metric is 'f2'"):
        run.score(metric="f2")
    assert {"pre", "post", "stale"} <= run.last_scores().keys()
    text = repr(run)
    assert str(run.path) in text and "fedrep" in text and "3 of 3 rounds" in text and "floor" in text
    assert "\n" not in text
    assert repr(hw.Run(run.path / "nothing")) == f"<Run {run.path / 'nothing'}>"
    assert repr(run.metric) == "<Metric accuracy>"


def test_per_client_metrics_as_a_frame(run: hw.Run) -> None:
    clients = run.clients_frame()
    assert [*clients.index] == [*run.names]
    for c, name in enumerate(run.names):
        assert clients.loc[name, "accuracy"] == run.last_scores()["pre"][c]
        assert clients.loc[name, "train_samples"] == sum(run.partition["train"][c])
        assert clients.loc[name, "floor"] == run.floors[c]


@pytest.mark.parametrize("name", ["VA", "vo", 0])
def test_an_unknown_name_is_an_error_with_the_nearest(run: hw.Run, name: Any) -> None:
    with pytest.raises(RunError, match=r"has no client .*(did you mean 'va'|its clients are basel, lima, va)"):
        run.model(name)


def test_positions_only_by_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {str(k): (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for k in (2, 3, 4)}
    run = hw.fit(data, method="fedavg", rounds=1, out=tmp_path / "run", engine=ONE_WORKER)
    with pytest.raises(RunError, match="has no client 1: its clients are 2, 3, 4"):
        run.model(1)
    assert run.model(2).card["of"]["name"] == run.model("2").card["of"]["name"] == "2"
    assert run.model(at=0).card["of"]["name"] == "2"
    assert run.model(at=2).card["of"]["name"] == "4"
    for at in (3, -1, "0"):
        with pytest.raises(RunError, match="clients at 0 to 2"):
            run.model(at=at)  # type: ignore[arg-type]
    for arguments in ({}, {"client": "2", "at": 0}):
        with pytest.raises(ConfigError, match="needs a client's name, or its position"):
            run.model(**arguments)
    assert (run.predict(data["3"][0], client=[3] * 20) == run.model(3).predict(data["3"][0])).all()


def test_one_quantity_is_one_number_a_sample(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(60, 3)).astype(np.float32) for name in ("a", "b")}
    y = {name: v @ np.array([1.0, 2.0, 3.0]) for name, v in x.items()}
    data = {name: (x[name], y[name]) for name in x}
    run = hw.fit(data, method="fedavg", rounds=2, task="regression", out=tmp_path / "run", engine=ONE_WORKER)
    model = run.model("a")
    assert model.predict(x["a"]).shape == (60,)
    loaded = hw.load_model(model.save(tmp_path / "model"))
    np.testing.assert_allclose(loaded.predict(x["a"]), model.predict(x["a"]), atol=1e-4)
    with pytest.raises(AttributeError):
        _ = model.classes_
    np.savez(tmp_path / "new.npz", x=x["a"])
    assert code("predict", tmp_path / "model", tmp_path / "new.npz", "-o", tmp_path / "out.csv", "--quiet") == 0
    assert pd.read_csv(tmp_path / "out.csv").shape == (60, 2)


def test_texts_are_rows_of_a_frame_and_a_string_is_one_text(tmp_path: Path) -> None:
    words = {"good": ["fine great", "nice good day"], "bad": ["awful sad", "poor bad night"]}
    rows = [(site, text, label) for site in ("a", "b") for label in words for text in words[label] * 5]
    frame = pd.DataFrame(rows, columns=["site", "review", "mood"])
    run = hw.fit(
        frame,
        client="site",
        target="mood",
        model="fasttext",
        features={"text": ["review"]},
        preprocess={"texts": "tokens", "length": 4, "buckets": 50},
        method="fedavg",
        rounds=1,
        out=tmp_path / "run",
        engine=ONE_WORKER,
    )
    model = run.model("a")
    texts = ["fine great", "awful sad", "poor bad night"]
    expected = model.predict_proba(texts)
    assert expected.shape == (3, 2)
    for samples in (
        pd.DataFrame({"review": texts}),
        pd.DataFrame({"site": "a", "review": texts, "mood": ""}),
        {"review": texts},
        pd.Series(texts),
        np.array(texts),
        np.array(texts, dtype=object),
        tuple(texts),
    ):
        assert (model.predict_proba(samples) == expected).all()
    assert (model.predict_proba("awful sad") == expected[1:2]).all()
    with pytest.raises(DataError, match="the model takes the column 'review'"):
        model.predict(pd.DataFrame({"a": texts, "b": texts}))


class Net(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.out = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.first(x)))


def test_ones_own_network_under_its_own_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(20, 3)).astype(np.float32), rng.integers(0, 2, 20)) for name in ("a", "b")}
    how: dict[str, Any] = {"method": "fedper", "rounds": 1, "preprocess": {"numbers": "as they are"}}
    run = hw.fit(data, model=Net(), **how, out=tmp_path / "run", engine=ONE_WORKER)
    model = run.model("a")
    net = Net()
    net.load_state_dict(model.state_dict())
    x = data["a"][0]
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), model.infer(x).scores, atol=1e-5)
    loaded = hw.load_model(model.save(tmp_path / "torch", "torch"), network=Net)
    net.load_state_dict(loaded.state_dict())


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_loaded_model_can_be_pickled(run: hw.Run, frame: pd.DataFrame, tmp_path: Path, format: Any) -> None:
    model = run.model("va")
    loaded = hw.load_model(model.save(tmp_path / "model", format))
    for each in (loaded, model):
        again = pickle.loads(pickle.dumps(each))
        np.testing.assert_allclose(again.predict_proba(frame), model.predict_proba(frame), atol=1e-5)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(loaded))
    program = "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], 'rb'))))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.pickle")],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stdout.strip() == repr(loaded)


def test_a_program_carries_names(run: hw.Run, tmp_path: Path) -> None:
    program = onnx.load(run.model("va").save(tmp_path / "model") / "model.onnx")
    names = {entry.key: entry.value for entry in program.metadata_props}
    assert names == {"task": "classification", "classes": '["no", "yes"]', "columns": '["chol", "age", "sex"]'}


def test_evaluate_counts_test_samples_only(
    run: hw.Run, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = run.manifest["experiment"]["data"]["path"]
    folder = run.model("va").save(tmp_path / "va")
    assert code("evaluate", folder, data, "--client", "va", "--quiet") == 0
    shown = capsys.readouterr()
    n = len(run.rows("va").index)
    assert f"Test samples of the run: {n} samples." in shown.out
    score = run.last_scores()["pre"][run.number_of("va")]
    assert f"{'accuracy':20} {run.metric.form(score)}" in shown.out
    assert "Floor: accuracy" in shown.out
    assert shown.err == ""
    frame.to_csv(tmp_path / "other.csv", index=False)
    assert code("evaluate", folder, tmp_path / "other.csv", "--quiet") == 0
    shown = capsys.readouterr()
    assert f"{len(frame)} samples." in shown.out
    assert "some samples may be training samples" in shown.err


def test_no_better_than_the_floor_is_said(run: hw.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.model("va").save(tmp_path / "va")
    turned = patients(60, 7)
    turned["ill"] = np.where(turned["ill"] == "yes", "no", "yes")
    turned.to_csv(tmp_path / "turned.csv", index=False)
    assert code("evaluate", folder, tmp_path / "turned.csv", "--quiet") == 0
    assert "No better than the floor" in capsys.readouterr().out
