"""Every method's models, as the run score_tests them and as they are elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exported_runs import raw, score_tests, small_run

import headwise as hw
from headwise.errors import ConfigError
from headwise.exports.run_models import Models
from headwise.settings.names import list_names
from waiting import PATIENCE

MORE = {"fedproto:evaluate=prototype": "fedproto-prototype"}
METHODS = [*list_names("method"), *MORE]
WITHOUT_HEADWISE = """
import json, sys
import numpy as np, onnxruntime
for folder in json.loads(sys.argv[1]):
    x = np.load(f"{folder}/x.npy")
    session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx")
    np.save(f"{folder}/probabilities.npy", session.run(["probabilities"], {"x": x})[0])
assert not [name for name in sys.modules if name.startswith(("headwise", "torch"))]
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hw.Run]:
    home = tmp_path_factory.mktemp("runs")
    return {method: small_run(home / MORE.get(method, method), method) for method in METHODS}


@pytest.mark.slow
def test_models_say_to_the_bit_what_the_run_measured(runs: dict[str, hw.Run]) -> None:
    """Each client's, after a download and after its last training; and the global one."""
    for method, run in runs.items():
        models = Models(run)
        for client in range(4):
            for moment in ("pre", "post"):
                trained = any(row["client"] == client and "post" in row for row in run.clients)
                if moment == "pre" or trained:
                    model = models.of(client, moment)
                    assert model.card["metrics"]["test"] == score_tests(models, model, client), (method, client, moment)


DIFFERENT = [
    "fedavg",
    "fedrod",
    "fedcp",
    "gpfl",
    "feddbe",
    "fedem",
    "fedmrl",
    "knn-per",
    "pfedfda",
    "apfl",
    "apple",
    *MORE,
]
"""methods whose models differ in more than their weights"""
COMPOSED = {"fedrod", "fedcp", "gpfl", "feddbe", "fedem", "fedmrl", "knn-per", "pfedfda", *MORE}
"""methods whose models are several networks, which only a program holds"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [DIFFERENT, pytest.param(METHODS, marks=pytest.mark.all_methods)], ids=["different", "all"]
)
def test_programs_elsewhere_say_the_same(runs: dict[str, hw.Run], chosen: list[str], tmp_path: Path) -> None:
    """In a process that never imports headwise nor torch; and weights give the same network here."""
    expected: dict[str, np.ndarray] = {}
    for method in chosen:
        folder = tmp_path / MORE.get(method, method)
        models = Models(runs[method])
        folder.mkdir()
        model = models.of(1)
        model.save(folder / "onnx")
        x = model.inputs.encode(raw(models, 1))
        np.save(folder / "x.npy", x)
        expected[str(folder)] = model.answer(x).probabilities
        if method in COMPOSED:
            with pytest.raises(ConfigError, match=f"a model of {method.partition(':')[0]} is a Composed"):
                model.save(folder / "torch", "torch")
            continue
        loaded = hw.load_model(model.save(folder / "torch", "torch"))
        np.testing.assert_allclose(loaded.answer(x).probabilities, expected[str(folder)], rtol=0, atol=1e-6)
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_HEADWISE, json.dumps([*expected])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    for folder, probabilities in expected.items():
        np.testing.assert_allclose(
            np.load(f"{folder}/probabilities.npy"), probabilities, rtol=0, atol=1e-5, err_msg=folder
        )
