"""`hw.fit`: from objects to a run; bad ones get a sentence, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import headwise as hw
from data_frames import Frame
from headwise.app.fit import DATA, SHORT
from headwise.cli.options import FLAGS
from headwise.data.own.description import Description
from headwise.errors import ConfigError, HeadwiseError
from headwise.settings.fields import field_types
from headwise.settings.options import Train
from same_runs import rows, stop

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
NAMES = ("va", "rome")


def frame(**more: list[Any]) -> Frame:
    ages = [None if k % 7 == 0 else float(v) for k, v in enumerate(X[:, 0])]
    return Frame(age=ages, sex=["f", "m", "m", "f"] * 5, ill=["no", "yes"] * 10, **more)


def fitted(clients: Any, out: Path, **settings: Any) -> hw.Run:
    return hw.fit(clients, **{"rounds": 1, "out": out, **settings})


PAIR = (X, Y)
KINDS: list[Any] = [
    PAIR,
    [X.tolist(), Y.tolist()],
    (torch.from_numpy(X), torch.from_numpy(Y)),
    TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    (X, Y.astype(str)),
]


@pytest.mark.parametrize("mine", KINDS, ids=range(len(KINDS)))
def test_arrays_tensors_lists_and_data_sets_are_the_same(tmp_path: Path, mine: Any) -> None:
    plain = fitted(dict.fromkeys(NAMES, PAIR), tmp_path / "plain")
    run = fitted(dict.fromkeys(NAMES, mine), tmp_path / "run")
    assert run.names == NAMES
    assert rows(run) == rows(plain)


def test_own_parts_are_kept(tmp_path: Path) -> None:
    parts = ((X[:10], Y[:10]), (X[10:14], Y[10:14]), (X[14:], Y[14:]))
    run = fitted({"va": parts, "rome": parts}, tmp_path / "run")
    assert [sum(map(sum, run.partition[part])) for part in ("train", "val", "test")] == [20, 8, 12]


def test_one_table_with_a_client_column(tmp_path: Path) -> None:
    table = frame(hospital=[*["va"] * 10, *["rome"] * 10])
    run = fitted(table, tmp_path / "run", client="hospital", target="ill", method="fedah")
    assert run.names == NAMES
    assert run.partition["classes"] == ["no", "yes"]
    again = fitted(dict.fromkeys(NAMES, frame()), tmp_path / "two", target="ill")
    assert again.names == NAMES


def test_a_data_toml_can_be_passed_too(tmp_path: Path) -> None:
    first = fitted(dict.fromkeys(NAMES, PAIR), tmp_path / "one")
    again = fitted(first.manifest["experiment"]["data"]["path"], tmp_path / "two")
    assert rows(again) == rows(first)


def test_settings_have_short_and_long_names(tmp_path: Path) -> None:
    run = fitted(
        dict.fromkeys(NAMES, PAIR),
        tmp_path / "run",
        lr=0.1,
        train={"momentum": 0.5},
        split="1:1:2",
        preprocess={"fit": "client"},
        seed=3,
    )
    experiment = run.manifest["experiment"]
    assert (experiment["train"]["lr"], experiment["train"]["momentum"]) == (0.1, 0.5)
    assert experiment["seed"] == 3
    described = Path(experiment["data"]["path"]).read_text()
    assert 'fit = "client"' in described
    assert 'ratio = "1:1:2"' in described


def test_short_names_are_those_of_the_command_line() -> None:
    assert {name: FLAGS[name][0] for name in SHORT if name in FLAGS} == {n: SHORT[n] for n in SHORT if n in FLAGS}
    assert SHORT.keys() - FLAGS.keys() == {"optimizer", "metric", "patience", "class_weight"}
    assert set(DATA) <= field_types(Description).keys()


def test_resume_and_workers_need_no_object(tmp_path: Path) -> None:
    clients = dict.fromkeys(NAMES, PAIR)
    whole = fitted(clients, tmp_path / "whole", rounds=3)
    with pytest.raises(KeyboardInterrupt):
        fitted(clients, tmp_path / "cut", rounds=3, observers=[stop])
    code = f"import headwise as hw; hw.resume({str(tmp_path / 'cut')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert rows(hw.Run(tmp_path / "cut")) == rows(whole)


HALF = (X[:10], Y[:10])
HOLES = X.copy()
HOLES[4, 1] = np.nan
KINDS_ALLOWED = (
    "a mapping of names to (x, y), a DataFrame with a client column, a partitioner, or the path of a data.toml"
)
FINITE = "fill them, or pass a DataFrame, whose gaps are filled"
BAD: list[tuple[Any, dict[str, Any], str]] = [
    ({"va": (X, Y[:5])}, {}, "client 'va' has 20 samples, but 5 targets."),
    ({"va": PAIR, "rome": (X[:, :2], Y)}, {}, "'rome' has samples of type float32 and shape [2], but 'va'"),
    ({"va": PAIR, "rome": (X[:0], Y[:0])}, {}, "client 'rome' has no samples."),
    ({"va": (HALF, HALF), "rome": ((X[:0], Y[:0]), HALF)}, {}, "client 'rome' has no samples for train."),
    ({}, {}, "clients is empty, but needs at least one client."),
    ({"va": (X, Y + 0.5)}, {"task": "classification"}, "is not a whole number, so it is not a class"),
    ({"va": (HOLES, Y)}, {}, f"client 'va' has values in x that are missing or infinite, in sample 4: {FINITE}."),
    ({"va": (X, np.full(20, np.inf))}, {}, "has values in y that are missing or infinite, in 20 samples: 0, 1"),
    ({"va": 3}, {}, "client 'va' has a int, but needs (x, y)."),
    ({"va": (X,)}, {}, "client 'va' has 1 items, but needs (x, y), (train, test) or (train, val, test)."),
    ([PAIR, PAIR], {}, f"clients is a list, but must be {KINDS_ALLOWED}."),
    (X, {}, f"clients is a ndarray, but must be {KINDS_ALLOWED}."),
    (frame(), {}, "clients is one table: client and target must name its columns."),
    ({"va": frame(), "rome": PAIR}, {"target": "ill"}, "clients has both tables and arrays: use one kind"),
    ({"va": frame()}, {}, "client 'va' has a table: target must name the column to predict."),
    ({"va": PAIR, "rome": PAIR}, {"lerning": 1}, "lerning is not a setting"),
    ({"va": PAIR, "rome": PAIR}, {"learning_rate": 1}, "learning_rate is not a setting: did you mean 'lr'?"),
    ({"va": PAIR, "rome": PAIR}, {"lr": -1}, "train.lr is -1.0, but must be above 0 and at most 1,000,000."),
    ({"va": PAIR, "rome": PAIR}, {"method": "fedavgg"}, "method is 'fedavgg', which is not known: did you mean 'fed"),
    ({"va": PAIR, "rome": PAIR}, {"task": "clasification"}, "task is 'clasification': did you mean 'classification'?"),
    ({"va": (X, Y * 0)}, {}, "the target has only one value, '0': there is nothing to predict."),
]  # fmt: skip


@pytest.mark.parametrize(("clients", "settings", "said"), BAD, ids=range(len(BAD)))
def test_bad_objects_and_settings_are_one_sentence(
    tmp_path: Path, clients: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(HeadwiseError) as error:
        fitted(clients, tmp_path / "deep" / "run", **settings)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(HeadwiseError, match="exists already and is not empty"):
        fitted({"va": PAIR}, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_script_without_a_guard_can_use_processes(tmp_path: Path) -> None:
    """Workers must not run the user's script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, headwise as hw\n"
        "open('log', 'a').write('once\\n')\n"
        "x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2\n"
        "run = hw.fit({'va': (x, y), 'rome': (x, y)}, rounds=1, workers=2, out='run')\n"
        "print(run.accuracy())\n"
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "once\n"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["ended"] == "finished"


@pytest.mark.parametrize("settings", [{"lr": 0.1, "train": Train(batch=5)}, {"train": Train(batch=5), "lr": 0.1}])
def test_a_short_setting_is_never_lost_beside_its_table(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.lr can't be set: train is Train\(.*, not a table"):
        hw.fit({}, out=tmp_path / "run", **settings)
