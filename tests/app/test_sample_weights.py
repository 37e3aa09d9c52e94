"""Sample weights count in the loss of training, by every way in, or are refused before there is a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import headwise as hw
from headwise.errors import ConfigError, DataError, HeadwiseError
from headwise.settings.names import list_names
from headwise.tasks.weights import OWN_LOSS
from same_runs import rows, stop

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
RNG = np.random.default_rng(5)
N = 40
TABLE = RNG.normal(size=(N, 3)).round(3)
X = TABLE.astype(np.float32)
RIGHT = (X[:, 0] > 0).astype(int)
WRONG = RNG.random(N) < 0.45
Y = np.where(WRONG, 1 - RIGHT, RIGHT)
W = np.where(WRONG, 0.0, 2.0)
CLIENTS = {"a": (X, Y), "b": (X[::-1].copy(), Y[::-1].copy())}
WEIGHTS = {"a": W, "b": W[::-1].copy()}
PARTED = {name: (pair, (X[:8], RIGHT[:8])) for name, pair in CLIENTS.items()}
FRAME = pd.DataFrame(np.vstack([TABLE, TABLE[::-1]]), columns=["u", "v", "w"]).assign(
    site=["a"] * N + ["b"] * N, label=np.concatenate([Y, Y[::-1]]), trust=np.concatenate([W, W[::-1]])
)


def fit(data: Any, out: Path, **settings: Any) -> hw.Run:
    usual: dict[str, Any] = {"method": "fedavg", "rounds": 4, "quiet": True, "engine": {"workers": 1}}
    return hw.fit(data, out=out, **{**usual, **settings})


def accuracy(run: hw.Run) -> float:
    """On labels that are right."""
    return float((run.model("a").predict(X) == RIGHT).mean())


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_labels_of_weight_0_teach_nothing(tmp_path: Path, kernels: str) -> None:
    settings: dict[str, Any] = {"rounds": 60, "lr": 0.3, "engine": {"workers": 1, "kernels": kernels}}
    weighted = fit(PARTED, tmp_path / "weighted", sample_weight=WEIGHTS, **settings)
    assert accuracy(weighted) > 0.95 > accuracy(fit(PARTED, tmp_path / "plain", **settings)) + 0.1


def test_one_step_is_that_of_the_weighted_mean(tmp_path: Path) -> None:
    """A client's weights have the mean 1 over its training samples."""
    data = {"a": ((X, Y), (X[:8], RIGHT[:8]))}
    options: dict[str, Any] = {"model": "linear", "preprocess": {"numbers": "as they are"}, "batch": N, "rounds": 1}
    w = RNG.random(N)
    start = fit(data, tmp_path / "start", lr=1e-9, **options).model("a").module.state_dict()
    end = fit(data, tmp_path / "end", lr=0.5, sample_weight={"a": w}, **options).model("a").module.state_dict()
    weight, bias = (t.double().requires_grad_() for t in start.values())
    scores = torch.from_numpy(X).double() @ (weight if weight.dim() == 2 else bias).T
    each = cross_entropy(scores + (bias if bias.dim() == 1 else weight), torch.from_numpy(Y), reduction="none")
    (each * torch.from_numpy(w / w.mean())).mean().backward()
    for before, after in zip((weight, bias), end.values(), strict=True):
        assert before.grad is not None
        torch.testing.assert_close(after, (before - 0.5 * before.grad).float(), rtol=1e-4, atol=1e-6)


TARGETS: dict[str, Any] = {
    "classification": Y,
    "multilabel": np.stack([Y, 1 - Y, Y], 1),
    "regression": X[:, 0] * 3,
    "segmentation": (RNG.random((N, 8, 8)) > 0.5).astype(int),
}


@pytest.mark.parametrize("task", TARGETS)
def test_equal_weights_change_nothing_but_rounding(task: str, tmp_path: Path) -> None:
    x = RNG.random((N, 1, 8, 8)).astype(np.float32) if task == "segmentation" else X
    data = {"a": (x, TARGETS[task]), "b": (x, TARGETS[task])}
    options: dict[str, Any] = {"task": task, "rounds": 2}
    plain = fit(data, tmp_path / "plain", **options).model("a").infer(x).scores
    sevens = {"a": np.full(N, 7.0), "b": np.full(N, 7.0)}
    even = fit(data, tmp_path / "even", sample_weight=sevens, **options).model("a").infer(x).scores
    np.testing.assert_allclose(even, plain, rtol=1e-3, atol=1e-4)
    other = {"a": np.arange(N), "b": np.arange(N)}
    uneven = fit(data, tmp_path / "uneven", sample_weight=other, **options).model("a").infer(x).scores
    assert np.abs(uneven - plain).max() > 1e-3


def test_every_way_in_gives_the_same_run(tmp_path: Path) -> None:
    columns = {"client": "site", "target": "label"}
    features = FRAME.drop(columns="trust")
    FRAME.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "data.toml").write_text(
        'format = "csv"\npath = "table.csv"\nclient = "site"\ntarget = "label"\nweight = "trust"\n'
        '[features]\nnumber = ["u", "v", "w"]\n'
    )
    frames = {name: (part[["u", "v", "w"]], part["label"]) for name, part in FRAME.groupby("site")}
    ways = {
        "column": fit(FRAME, tmp_path / "column", sample_weight="trust", **columns),
        "numbers": fit(features, tmp_path / "numbers", sample_weight=FRAME["trust"], **columns),
        "frames": fit(frames, tmp_path / "frames", sample_weight=WEIGHTS),
        "toml": fit(tmp_path / "data.toml", tmp_path / "toml"),
        "named": fit(tmp_path / "data.toml", tmp_path / "named", sample_weight="trust"),
        "two workers": fit(FRAME, tmp_path / "two", sample_weight="trust", engine={"workers": 2}, **columns),
        "threads": fit(FRAME, tmp_path / "threads", sample_weight="trust", engine={"workers": "threads:2"}, **columns),
    }
    first = rows(ways["column"])
    assert [name for name, run in ways.items() if rows(run) != first] == []
    assert first != rows(fit(features, tmp_path / "plain", **columns))
    arrays = fit(CLIENTS, tmp_path / "arrays", sample_weight=WEIGHTS).model("a").predict_proba(X)
    np.testing.assert_allclose(ways["column"].model("a").predict_proba(FRAME[:N]), arrays, atol=1e-5)


def test_an_interrupted_run_goes_on_with_its_weights(tmp_path: Path) -> None:
    whole = fit(CLIENTS, tmp_path / "whole", sample_weight=WEIGHTS)
    with pytest.raises(KeyboardInterrupt):
        fit(CLIENTS, tmp_path / "cut", sample_weight=WEIGHTS, observers=[stop])
    assert rows(hw.resume(tmp_path / "cut")) == rows(whole)


def test_weights_are_printed_and_metrics_ignore_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(FRAME, tmp_path / "run", client="site", target="label", sample_weight="trust", quiet=False)
    assert "weights   trust, of each training sample in the loss\n" in capsys.readouterr().out
    held = run.rows("a", "test")
    right = (run.model("a").predict(FRAME.iloc[held.index]) == held.y).mean()
    assert run.last_scores()["pre"][0] == pytest.approx(right)


def test_methods_with_a_loss_of_their_own_are_refused_as_the_page_says(tmp_path: Path) -> None:
    refused: list[str] = []
    for name in list_names("method"):
        message = ""
        try:
            fit(CLIENTS, tmp_path / name, method=name, rounds=1, sample_weight=WEIGHTS)
        except HeadwiseError as error:
            message = str(error)
            refused.append(name)
        assert (tmp_path / name).exists() is not message.endswith(f"{OWN_LOSS}.")
    [line] = re.findall(r"These methods have their own losses[^:]*: ([^.]*)\.", PAGE.read_text(encoding="utf-8"))
    assert re.findall("`([^`]+)`", line) == refused


OWN_METHOD = '''
from torch.nn.functional import log_softmax
from headwise.authoring import *

class Careless(Averaging[Nothing]):
    """Takes targets apart, so that its loss has no weights."""

    def local_update(self, me, down, local):
        m = local.model(down.w)
        local.sgd(m, loss=lambda x, y: -log_softmax(m(x), 1).gather(1, y.unsqueeze(1)).mean())
        return Update(Shared(m.params()), me, m)
'''


def test_a_method_of_ones_own_that_ignores_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(OWN_METHOD)
    with pytest.raises(ConfigError, match="a loss of its own, which would ignore them"):
        fit(CLIENTS, tmp_path / "run", method=str(tmp_path / "careless.py"), sample_weight=WEIGHTS)


@pytest.mark.parametrize("option", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_options_of_the_loss_are_refused_where_a_method_would_ignore_them(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    (tmp_path / "careless.py").write_text(OWN_METHOD)
    [(name, value)] = option.items()
    for method in ("fedlc", "fedem", str(tmp_path / "careless.py")):
        with pytest.raises(ConfigError, match=f"train.{name} is {value!r}, but .* has a loss of its own"):
            fit(CLIENTS, tmp_path / "refused", method=method, train=option)
        assert not (tmp_path / "refused").exists()
    for method in ("fedavg", "moon", "fedkd"):
        assert fit(CLIENTS, tmp_path / method, method=method, train=option).complete


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (CLIENTS, {"sample_weight": W}, "sample_weight must map each client's name to the weights"),
        (CLIENTS, {"sample_weight": {"a": W}}, "sample_weight has no weights for client 'b'."),
        (CLIENTS, {"sample_weight": {**WEIGHTS, "c": W}}, "sample_weight has client 'c', which clients does not."),
        (CLIENTS, {"sample_weight": {"a": W, "b": W[:5]}}, "of client 'b' has the shape [5], but needs a number for e"),
        (CLIENTS, {"sample_weight": "trust"}, "sample_weight is 'trust', but clients has arrays without columns"),
        (CLIENTS, {"sample_weight": {"a": W, "b": -1 - W}}, "but must be a finite number that is not negative"),
        (CLIENTS, {"sample_weight": {"a": W, "b": W * np.nan}}, "but must be a finite number that is not negative"),
        (CLIENTS, {"sample_weight": {"a": W, "b": W * 0}}, "client 1 (b) has no training sample whose weight is above"),
        (CLIENTS, {"sample_weight": WEIGHTS, "drift": {"round": 2}}, "but the data have sample weights, which do not"),
        (
            CLIENTS,
            {
                "sample_weight": WEIGHTS,
                "privacy": {"clip": 1.0, "level": "example"},
                "preprocess": {"numbers": "as they are"},
            },
            "privacy.level is 'example', but the data have sample weights, which no mechanism protects.",
        ),
        (FRAME, {"sample_weight": "truth", "client": "site", "target": "label"}, "which is not a column of clients"),
        (FRAME, {"sample_weight": W, "client": "site", "target": "label"}, "has the shape [40], but needs a number f"),
        (CLIENTS, {"weights": WEIGHTS}, "weights is not a setting: did you mean 'sample_weight'?"),
    ],
)
def test_wrong_weights_are_one_sentence(data: Any, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        fit(data, tmp_path / "run", **settings)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_takes_weights(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"rounds": 2, "workers": 1}
    compared = hw.compare(CLIENTS, ["fedavg"], 1, tmp_path / "compared", sample_weight=WEIGHTS, **usual)
    [run] = compared.setting.lines[0].runs
    assert rows(run) == rows(fit(CLIENTS, tmp_path / "run", sample_weight=WEIGHTS, **usual))
