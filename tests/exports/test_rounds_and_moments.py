"""Which round's model, and at which moment: the best round is kept, and survives whatever the run survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_runs import raw, score_tests, small_run, usual_experiment

import headwise as hw
from headwise.engine.events import Event, RoundEnded
from headwise.errors import RunError
from headwise.exports.run_models import Models

FALLING: dict[str, Any] = {"rounds": 5, "train": {"lr": 1.0}, "seed": 2}
"""its second round is the best"""


def best_round(run: hw.Run) -> int:
    curve = {row["round"]: row.get("pre", {})["val_accuracy"] for row in run.rounds}
    return max(curve, key=lambda t: (curve[t], -t))


def slots(run: hw.Run) -> int:
    return sum(p.stat().st_size for p in run.path.glob("checkpoint/states-*"))


def test_the_best_rounds_models_are_those_that_it_measured(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedrep", **FALLING)
    models = Models(run)
    best = best_round(run)
    assert best < len(run.rounds), "or this shows nothing"
    for client in range(4):
        model = models.of(client, round="best")
        assert model.card["of"]["round"] == best
        lines = [row for row in run.clients if (row["round"], row["client"]) == (best, client)]
        assert score_tests(models, model, client) == lines[0].get("pre", {}).get("test")
        assert model.card["metrics"] == lines[0].get("pre")


def test_a_resumed_run_keeps_the_same_best_round(tmp_path: Path) -> None:
    """With the same bits, whether it was interrupted before or after that round."""
    whole = small_run(tmp_path / "whole", "fedrep", **FALLING)
    for stop in (best_round(whole), best_round(whole) + 1):
        interrupted = tmp_path / f"stop-{stop}"

        def halt(event: object, stop: int = stop) -> None:
            if type(event).__name__ == "RoundStarted" and event.t == stop + 1:  # pyright: ignore
                raise KeyboardInterrupt

        experiment = hw.Experiment(**whole.manifest["experiment"])
        with pytest.raises(KeyboardInterrupt):
            hw.run(experiment, interrupted, observers=[halt])
        run = hw.resume(interrupted)
        for client in range(4):
            for moment in ("pre", "post"):
                ours, theirs = (Models(r).of(client, moment, "best") for r in (run, whole))
                x = raw(Models(whole), client)
                np.testing.assert_array_equal(ours.infer(x).scores, theirs.infer(x).scores)


def test_rounds_that_are_no_longer_the_best_leave_nothing(tmp_path: Path) -> None:
    """Slots are freed when another round is better: as many as three checkpoints need."""
    run = small_run(tmp_path / "run", "fedrep", rounds=12)
    once = slots(small_run(tmp_path / "one", "fedrep", rounds=1, sampling={"ratio": 1.0}))
    assert slots(run) <= 3 * once
    assert len([*run.path.glob("checkpoint/best-*")]) == 1


def test_without_a_kept_round_or_model_there_is_a_sentence(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedavg", evaluate={"keep": []}, sampling={"ratio": 0.25}, rounds=1)
    with pytest.raises(RunError, match=r"keeps no best round: evaluate.keep = \['best'\] does"):
        run.model(0, round="best")
    (trained,) = run.rounds[0].get("clients", [])
    with pytest.raises(RunError, match=r"kept no post-training models: rerun with evaluate.keep = \['post'\]"):
        run.model(trained, moment="post")
    with pytest.raises(RunError, match="has not trained in 1 round:"):
        run.model((trained + 1) % 4, moment="post")
    assert not [*run.path.glob("checkpoint/best-*")]


def interrupted_run(folder: Path, **more: Any) -> hw.Run:
    """Of five rounds, measured after each second one, three."""

    def stop(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.row["round"] == 3:
            raise KeyboardInterrupt

    usual = usual_experiment("fedrep", rounds=5, evaluate={"every": 2, "keep": ["post"]}, **more)
    with pytest.raises(KeyboardInterrupt):
        hw.run(usual, folder, observers=[stop])
    return hw.Run(folder)


def test_scores_of_an_interrupted_run_are_those_of_its_last_evaluation(tmp_path: Path) -> None:
    cut = interrupted_run(tmp_path / "cut")
    assert any("post" in row for row in cut.clients if row["round"] == 3)
    whole = small_run(tmp_path / "whole", "fedrep", rounds=2, evaluate={"every": 2})
    assert cut.last_scores() == whole.last_scores()
    assert cut.clients_frame("post").equals(whole.clients_frame("post"))


def test_a_model_trained_after_the_last_evaluation_has_no_scores_of_an_earlier_one(tmp_path: Path) -> None:
    card = interrupted_run(tmp_path / "cut", sampling={"ratio": 1.0}).model(0, moment="post").card
    assert (card["of"]["round"], card["metrics"]) == (3, None)
    whole = hw.resume(tmp_path / "cut")
    (line,) = (row for row in whole.clients if (row["round"], row["client"]) == (5, 0))
    assert whole.model(0, moment="post").card["metrics"] == line["post"]


def test_a_damaged_best_round_does_not_stop_the_run(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedrep", **FALLING)
    (best,) = run.path.glob("checkpoint/best-*")
    best.write_bytes(best.read_bytes()[:-1])
    assert run.model(0).card["of"]["round"] == 5
    with pytest.raises(RunError, match="keeps no best round"):
        run.model(0, round="best")


def test_the_global_model(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedavg", evaluate={"moments": ["pre", "global"]})
    models = Models(run)
    model = run.global_model()
    for client in range(4):
        lines = [row for row in run.clients if (row["round"], row["client"]) == (2, client)]
        assert score_tests(models, model, client) == lines[0].get("global", {}).get("test")
    assert model.card["of"]["kind"] == "global"
    assert model.card["metrics"] == run.rounds[-1].get("global")


@pytest.mark.parametrize("network", ["cnn", "normed"])
def test_convolutions_to_the_bit(network: str, tmp_path: Path) -> None:
    """Images lie otherwise in memory, BatchNorm statistics stay at the clients, and ONNX merges both."""
    (tmp_path / "synthetic_images.py").write_text(IMAGES)
    (tmp_path / "normed.py").write_text(NORMED)
    usual = {"data": str(tmp_path / "synthetic_images.py"), "clients": 2, "sampling": {"ratio": 1.0}}
    model = "cnn" if network == "cnn" else str(tmp_path / "normed.py")
    models = Models(small_run(tmp_path / "run", "fedper", model=model, **usual))
    for client, moment in ((0, "pre"), (1, "post")):
        made = models.of(client, moment)
        x = raw(models, client)
        assert made.card["metrics"]["test"] == score_tests(models, made, client)
        made.save(tmp_path / moment)
        assert x.dtype == np.uint8
        probabilities = hw.load_model(tmp_path / moment).predict_proba(x)
        np.testing.assert_allclose(probabilities, made.predict_proba(x), rtol=0, atol=1e-5)


NORMED = '''
from dataclasses import dataclass
from torch import nn
from headwise.models.base import Model
from headwise.models.split import SplitModel

@dataclass(frozen=True)
class Normed(Model):
    """A convolution with BatchNorm."""

    def build(self, task):
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten())
        return SplitModel(body, nn.Linear(16, task.classes))
'''
IMAGES = '''
from dataclasses import dataclass
import numpy as np
from headwise.data.dataset import Dataset, Source

@dataclass(frozen=True)
class SyntheticImages(Source):
    """Noise, brighter for one class."""

    def load(self, folder):
        rng = np.random.default_rng(0)
        y = rng.integers(2, size=60)
        x = (rng.integers(200, size=(60, 1, 16, 16)) + 50 * y[:, None, None, None]).astype(np.uint8)
        return Dataset(x, y, ("dark", "bright"), (0.4,), (0.2,))
'''
