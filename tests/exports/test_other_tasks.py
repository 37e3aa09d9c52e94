"""Models of other tasks: in the user's units and shapes, from the run and from the exported program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise.errors import RunError
from headwise.exports.run_models import Models
from headwise.tasks.registry import objective_of

DATA = {
    "multilabel": "synthetic:samples=200:sites=2:features=5:task=multilabel",
    "regression": "synthetic:samples=200:sites=2:features=5:task=regression",
    "segmentation": "shapes",
}


@pytest.mark.parametrize("task", DATA)
def test_a_model_says_what_its_run_measured_and_its_program_the_same(task: str, tmp_path: Path) -> None:
    experiment = hw.Experiment(
        method="fedper",
        data=DATA[task],
        partition="natural",
        rounds=1,
        evaluate={"metrics": ["loss"]} if task == "segmentation" else {},
    )
    run = hw.run(experiment, tmp_path / "run", data_dir=tmp_path)
    model = run.model(at=1)
    data = Models(run).data
    part = data.parts[1].test
    x = data.dataset.x[part]
    y = data.dataset.y[part]
    prediction = model.predict(x)
    assert prediction.shape == y.shape
    line = next(line for line in run.clients if line["round"] == 1 and line["client"] == 1)["pre"]["test"]
    if task == "regression":
        rmse = float(
            np.sqrt(np.square(prediction.astype(np.float64) - y).mean(0)).mean()
        )  # of each target, then their mean
        assert line["rmse"] == pytest.approx(rmse, rel=1e-5)
        with pytest.raises(RunError, match="there are no probabilities"):
            model.predict_proba(x)
    elif task == "multilabel":
        assert line["accuracy"] == pytest.approx(float((prediction == y).mean()))
    loaded = hw.load_model(model.save(tmp_path / "out", "torch"))
    np.testing.assert_allclose(loaded.infer(x).scores, model.infer(x).scores, atol=1e-4)
    assert (loaded.predict(x) == prediction).mean() > 0.99 or task == "regression"


@pytest.mark.parametrize("task", DATA)
def test_a_model_can_be_exported_to_onnx_before_it_was_asked_anything(task: str, tmp_path: Path) -> None:
    experiment = hw.Experiment(method="fedper", data=DATA[task], partition="natural", rounds=1)
    run = hw.run(experiment, tmp_path / "run", data_dir=tmp_path)
    models = Models(run)
    model = models.of(1)
    objective_of.cache_clear()  # as in a fresh process
    loaded = hw.load_model(model.save(tmp_path / "out"))
    x = models.data.dataset.x[models.data.parts[1].test]
    np.testing.assert_allclose(loaded.infer(x).scores, model.infer(x).scores, atol=1e-4)
