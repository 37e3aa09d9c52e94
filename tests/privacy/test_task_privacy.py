"""Privacy and audits of tasks other than classification: they work, or a sentence says what does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.app.prepare import prepare
from headwise.audit.auditing import audit
from headwise.audit.inference import losses
from headwise.audit.scene import scene_of
from headwise.cli import main
from headwise.errors import ConfigError
from headwise.settings.experiment import experiment_from
from headwise.tasks.registry import objective_of

DATA = {
    "multilabel": {"data": "synthetic:samples=60:sites=2:task=multilabel", "model": "mlp:4"},
    "regression": {"data": "synthetic:samples=60:sites=2:task=regression", "model": "mlp:4"},
    "segmentation": {"data": "shapes:samples=16:sites=2:noise=0.1", "model": "fcn:4:3"},
}


def run(folder: Path, task: str, **settings: Any) -> hw.Run:
    usual = {"partition": "natural", "rounds": 1, "method": "fedavg", "engine": {"workers": 1}}
    return hw.run(hw.Experiment(**{**usual, **DATA[task], **settings}), folder, data_dir=folder)


@pytest.mark.parametrize("level", ["client", "example"])
@pytest.mark.parametrize("task", ["multilabel", "segmentation"])
def test_labels_and_pixels_can_be_private(task: str, level: str, tmp_path: Path) -> None:
    found = run(tmp_path / "run", task, privacy={"clip": 1.0, "level": level, "source": "seed"})
    assert found.complete
    assert found.manifest["experiment"]["task"] == task
    assert f"of one {level} against the server" in found.privacy


@pytest.mark.parametrize("level", ["client", "example"])
def test_quantities_are_private_within_a_declared_range(level: str, tmp_path: Path) -> None:
    privacy = {"clip": 0.5, "level": level, "source": "seed"}
    with pytest.raises(ConfigError) as error:
        run(tmp_path / "run", "regression", privacy=privacy)
    assert str(error.value) == (
        "privacy.clip is 0.5, but task is 'regression', and the mean and the deviation of its targets are measured "
        "without protection: set target_range to the lowest and highest value that a target can have, such as [0, 350]."
    )
    assert not (tmp_path / "run").exists()
    found = run(tmp_path / "run", "regression", privacy=privacy, target_range=[[-10, 30]] * 3)
    assert f"of one {level} against the server" in found.privacy
    task = prepare(experiment_from(found.manifest["experiment"]), tmp_path).plan.data.task
    assert (task.centre, task.spread) == ((10,) * 3, (10,) * 3), "whatever the samples are"


@pytest.mark.parametrize("task", DATA)
def test_membership_is_attacked_in_every_task(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "run", task).path
    result = audit(folder, clients=2)
    assert {f.attack for f in result.findings} == {"membership inference"}
    assert all(0 <= f.score <= 1 for f in result.findings)
    assert result.fields
    with pytest.raises(SystemExit):
        main(["audit", str(folder), "--clients", "1"])
    assert f"Of a run on {task}, only membership is attacked" in capsys.readouterr().out


@pytest.mark.parametrize("task", DATA)
def test_losses_of_single_samples_have_the_mean_of_their_batch(task: str, tmp_path: Path) -> None:
    with scene_of(run(tmp_path / "run", task).path, tmp_path) as scene:
        samples, model, objective = scene.train(0), scene.plan.models[0], objective_of(scene.plan.data.task)
        each = losses(model, samples, objective)
        with torch.no_grad():
            whole = objective.loss(model(samples.x), samples.y)
    assert each.shape == (len(samples),)
    assert float(each.mean()) == pytest.approx(float(whole), rel=1e-4)
