"""What people do in notebooks: run a cell twice, compare on data in memory, use the names that they know."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from data_frames import Frame
from headwise.errors import ConfigError, DataError, RunError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)
CLIENTS: dict[str, Any] = {"va": (X, Y), "rome": (X[::-1].copy(), Y[::-1].copy())}


class LogScores(nn.Module):
    """Ends in a softmax after its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.out(torch.relu(self.hidden(x))), 1)


def test_a_split_network_with_something_after_its_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the output of its layer 'out': leave out what follows it, such as a soft"):
        hw.fit(CLIENTS, model=hw.split(LogScores(), "out"), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_split_network_is_the_given_one(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert hw.fit(CLIENTS, model=hw.split(net, "2"), rounds=1, out=tmp_path / "run").complete


def test_a_cell_can_be_run_twice(tmp_path: Path) -> None:
    out = tmp_path / "run"
    hw.fit(CLIENTS, rounds=1, out=out)
    with pytest.raises(RunError, match="exists already"):
        hw.fit(CLIENTS, rounds=2, out=out)
    assert len(hw.Run(out).rounds) == 1
    assert len(hw.fit(CLIENTS, rounds=2, out=out, overwrite=True).rounds) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert hw.run(hw.Experiment(data="synthetic:80:4:8", clients=3, rounds=1), out, overwrite=True).complete


def test_what_is_not_a_run_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("all of it")
    with pytest.raises(RunError, match=r"can't be overwritten: chapter\.tex in it is not a file of a run"):
        hw.fit(CLIENTS, rounds=1, out=out, overwrite=True)
    run = hw.fit(CLIENTS, rounds=1, out=tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt in it is not a file of a run"):
        hw.fit(CLIENTS, rounds=1, out=run.path, overwrite=True)
    assert (out / "chapter.tex").read_text() == "all of it"
    assert hw.Run(run.path).complete


def test_a_run_comes_back_if_the_new_one_cannot_start(tmp_path: Path) -> None:
    out = tmp_path / "run"
    hw.fit(CLIENTS, rounds=1, out=out)
    with pytest.raises(hw.HeadwiseError):
        hw.fit({"va": (X, Y[:3])}, rounds=1, out=out, overwrite=True)
    assert hw.Run(out).complete
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_comparing_takes_what_fit_takes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 1, "lr": 0.1, "workers": 1}
    first = hw.compare(CLIENTS, ["fedavg", "fedper"], out=tmp_path / "out", **settings)
    assert [line.name for line in first.setting.lines] == ["fedavg", "fedper"]
    assert first.setting.lines[0].runs[0].names == ("va", "rome")
    again = hw.compare(CLIENTS, ["fedavg", "fedper", "standalone"], out=tmp_path / "out", **settings)
    created = [line.runs[0].manifest["created"] for c in (first, again) for line in c.setting.lines[:2]]
    assert created[:2] == created[2:]
    with pytest.raises(ConfigError, match=r"rounds is given beside an Experiment: set it there\."):
        hw.compare(hw.Experiment(), ["fedavg"], rounds=3)


def test_comparing_takes_a_table(tmp_path: Path) -> None:
    table = Frame(a=X[:, 0].tolist(), clinic=["va", "rome"] * 30, ill=[f"c{k}" for k in Y])
    done = hw.compare(table, ["fedavg"], out=tmp_path / "out", client="clinic", target="ill", rounds=1)
    assert done.setting.lines[0].runs[0].names == ("va", "rome")


def test_settings_have_the_names_that_people_know(tmp_path: Path) -> None:
    known: dict[str, Any] = {"optimizer": "adam", "metric": "f1", "patience": 3, "class_weight": "balanced"}
    run = hw.fit(CLIENTS, rounds=1, out=tmp_path / "run", **known)
    experiment = run.manifest["experiment"]
    assert experiment["train"]["optimizer"] == "adam"
    assert experiment["train"]["class_weights"] == "balanced"
    assert experiment["evaluate"]["metric"] == "f1"
    assert experiment["stop"]["patience"] == 3


def test_stopping_on_test_scores_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headwise"):
        hw.fit(CLIENTS, rounds=1, patience=2, out=tmp_path / "run")
        assert "no validation samples: the run stops by its test scores" in caplog.text
        caplog.clear()
        hw.fit(CLIENTS, rounds=1, patience=2, split={"by": "ratio", "ratio": "6:2:2"}, out=tmp_path / "other")
        assert "no validation samples" not in caplog.text


def test_what_was_made_of_the_data_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Frame(age=[float(v) for v in X[:, 0]], sex=["f", "m"] * 30, ward=["a", "b", "a"] * 20, ill=Y.tolist())
    hw.fit(table, client="ward", target="ill", rounds=1, out=tmp_path / "table")
    assert capsys.readouterr().out.splitlines() == [
        "task      classification of ill: 0, 1",
        "clients   2; samples: 45 train, 0 val, 15 test",
        "number    age (standardized; gaps filled with mean)",
        "category  sex (one-hot; unknown ones count as missing)",
        "split     75/25 at random",
    ]
    how = {"preprocess": {"numbers": "as they are"}, "split": {"ratio": "6:2:2"}}
    hw.fit(CLIENTS, rounds=1, out=tmp_path / "arrays", **how)
    printed = capsys.readouterr().out
    assert "samples: 72 train, 24 val, 24 test" in printed
    assert "numbers not scaled" in printed
    assert "split     6:2:2 at random" in printed
    hw.fit({name: (x, x[:, 0]) for name, (x, _) in CLIENTS.items()}, rounds=1, out=tmp_path / "quantities")
    assert capsys.readouterr().out.startswith("task      regression\n")
    hw.fit(CLIENTS, rounds=1, out=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().out == ""


def test_what_arrays_hold_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not images where there are none, and truth values as they are."""
    hw.fit({name: (x, y == 1) for name, (x, y) in CLIENTS.items()}, rounds=1, out=tmp_path / "numbers")
    assert capsys.readouterr().out.splitlines() == [
        "task      classification: False, True",
        "clients   2; samples: 90 train, 0 val, 30 test",
        "features  numbers standardized",
        "split     75/25 at random",
    ]
    images = np.zeros((60, 1, 8, 8), np.uint8)
    hw.fit({name: (images, y) for name, (_, y) in CLIENTS.items()}, rounds=1, out=tmp_path / "images")
    assert "features  images of uint8 scaled to the range 0 to 1\n" in capsys.readouterr().out
    table = Frame(age=[float(v) for v in X[:, 0]], ward=["a", "b", "a"] * 20, ill=(Y == 1).tolist())
    hw.fit(table, client="ward", target="ill", rounds=1, out=tmp_path / "table")
    assert "task      classification of ill: False, True\n" in capsys.readouterr().out


def test_a_split_never_overrides_parts_that_were_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were passed as test rows were trained on."""
    parts = {name: ((x[:40], y[:40]), (x[40:], y[40:])) for name, (x, y) in CLIENTS.items()}
    with pytest.raises(DataError, match="split is given, but clients have training and test samples already"):
        hw.fit(parts, rounds=1, split="6:2:2", out=tmp_path / "parts")
    hw.fit(CLIENTS, rounds=1, split="6:2:2", out=tmp_path / "run")
    assert "split     6:2:2 at random" in capsys.readouterr().out
