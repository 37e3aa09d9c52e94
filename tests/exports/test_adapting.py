"""A model for a client that is new: `Run.adapt` and `headwise adapt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_runs import small_run

import headwise as hw
from headwise.cli import main
from headwise.errors import DataError, RunError
from headwise.exports.run_models import Models
from headwise.settings.experiment import experiment_from


def samples(run: hw.Run, n: int = 60) -> tuple[Any, Any]:
    """Of all clients, as somebody else might have them."""
    dataset = Models(run).data.dataset
    return dataset.x[:n], np.array(dataset.classes, dtype=object)[dataset.y[:n]]


@pytest.mark.parametrize("method", ["fedftha", "fedah", "fedgmh", "fedgh", "fedafk", "apple", "fedfomo", "fd"])
def test_a_run_gives_a_newcomer_a_model(method: str, tmp_path: Path) -> None:
    """Also by methods whose servers keep something for each client they know."""
    run = small_run(tmp_path / "run", method)
    x, y = samples(run)
    model = run.adapt(x, y, epochs=8)
    assert (model.predict(x) == y).mean() > (run.adapt(x, y, epochs=0).predict(x) == y).mean()
    assert model.card["of"]["epochs"] == 8
    assert np.array_equal(model.predict_proba(x), run.adapt(x, y, epochs=8).predict_proba(x)), "the same again"


def test_without_epochs_it_is_the_global_model(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedavg")
    x, y = samples(run)
    assert np.array_equal(run.adapt(x, y, epochs=0).predict_proba(x), run.global_model().predict_proba(x))


def test_it_can_be_saved_and_loaded(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedrep")
    x, y = samples(run)
    model = run.adapt(x, y, epochs=1)
    model.save(tmp_path / "mine", "torch")
    assert np.allclose(hw.load_model(tmp_path / "mine").predict_proba(x), model.predict_proba(x), atol=1e-5)


def test_bad_samples_get_a_sentence(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedavg")
    x, y = samples(run)
    for a, b, sentence in (
        (x, [*y[:-1], "none"], "label 59: 'none' is not one of the classes"),
        (x, y[:-1], "x has 60 samples and y 59 labels"),
        (x[:0], y[:0], "x has 0 samples and y 0 labels"),
        (x[:, :3], y, "samples are float32 of shape"),
    ):
        with pytest.raises(DataError, match=sentence):
            run.adapt(a, b)
    with pytest.raises(RunError, match="epochs is -1, but must be from 0 to 10000"):
        run.adapt(x, y, epochs=-1)


def adapt(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main(["adapt", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return json.loads(printed.out)


def test_the_command_reads_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "run", "fedavg")
    dataset = Models(run).data.dataset
    np.savez(tmp_path / "mine.npz", x=dataset.x[:80], y=dataset.y[:80])
    result = adapt(capsys, run.path, tmp_path / "mine.npz", "--epochs", 3, "-o", tmp_path / "out", "--format", "torch")
    (mine,) = result["clients"]
    assert (mine["client"], mine["trained_on"], mine["measured_on"]) == ("", 60, 20)
    assert mine["scores"]["3"]["accuracy"] >= mine["scores"]["0"]["accuracy"]
    assert hw.load_model(tmp_path / "out").predict(dataset.x[:3]).shape == (3,)


@pytest.mark.parametrize("fit", ["pooled", "client"])
def test_the_command_reads_what_a_data_toml_describes(
    fit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of its own, with another client; where each client has its own scale, so has this one."""
    write(tmp_path / "both.csv", ["a", "b"], shift=0.0)
    write(tmp_path / "mine.csv", ["c"], shift=50.0 if fit == "client" else 0.0)
    for name in ("both", "mine"):
        text = f'format = "csv"\npath = "{name}.csv"\nclient = "who"\ntarget = "ill"\npreprocess.fit = "{fit}"\n'
        text += '[features]\nnumber = ["age"]\ncategory = ["sex"]\n'
        (tmp_path / f"{name}.toml").write_text(text)
    run = hw.run(
        experiment_from({"method": "fedrep", "data": str(tmp_path / "both.toml"), "rounds": 3}), tmp_path / "run"
    )
    result = adapt(capsys, run.path, tmp_path / "mine.toml", "--client", "c", "--epochs", 5)
    assert [each["client"] for each in result["clients"]] == ["c"]
    assert result["clients"][0]["scores"]["5"]["accuracy"] > 0.8


def test_every_client_of_a_data_toml_gets_a_model_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as if it had been the only one asked for; nothing is pooled."""
    write(tmp_path / "both.csv", ["a", "b"], shift=0.0)
    write(tmp_path / "mine.csv", ["c", "d"], shift=0.5)
    for name in ("both", "mine"):
        text = f'format = "csv"\npath = "{name}.csv"\nclient = "who"\ntarget = "ill"\n'
        (tmp_path / f"{name}.toml").write_text(text + '[features]\nnumber = ["age"]\ncategory = ["sex"]\n')
    run = hw.run(
        experiment_from({"method": "fedrep", "data": str(tmp_path / "both.toml"), "rounds": 1}), tmp_path / "run"
    )
    out = ("-o", tmp_path / "out", "--format", "torch")
    both = adapt(capsys, run.path, tmp_path / "mine.toml", "--epochs", 2, *out)["clients"]
    alone = adapt(capsys, run.path, tmp_path / "mine.toml", "--epochs", 2, "--client", "d")["clients"]
    assert [each["client"] for each in both] == ["c", "d"]
    assert {k: v for k, v in both[1].items() if k != "model"} == {k: v for k, v in alone[0].items() if k != "model"}
    models = [hw.load_model(tmp_path / "out" / name) for name in ("c", "d")]
    cells = {"age": [0.1, -3], "sex": ["f", "m"]}
    assert (models[0].predict_proba(cells) != models[1].predict_proba(cells)).any()
    assert [m.card["training"]["samples"] for m in models] == [45, 45]
    with pytest.raises(SystemExit):
        main(["adapt", str(run.path), str(tmp_path / "mine.toml"), "--epochs", "0"])
    printed = capsys.readouterr().out
    assert "mine.toml has 2 clients: one model each." in printed
    assert "d: trained on 45 samples; accuracy" in printed


def write(path: Path, who: list[str], shift: float) -> None:
    rng = np.random.default_rng(len(who))
    lines = ["who,age,sex,ill"]
    for k in range(120):
        age = rng.normal()
        sex = rng.choice(["f", "m"])
        lines.append(f"{who[k % len(who)]},{age + shift:.4f},{sex},{'yes' if age > 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
