"""Models of a deployed run: the global one from its server's folder, personal ones from the sites."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import LocalTransport, experiment, run_deployment, write_site

import headwise as hw
from headwise.cli import main
from headwise.errors import RunError
from headwise.exports.run_models import Models
from headwise.settings.names import list_names
from headwise.sites.server import nodes
from headwise.sites.site.models import export, list_holdings

SOME = ["fedrod"]
COMPOSED = {"fedcp", "feddbe", "fedem", "fedmrl", "fedrod", "gpfl", "knn-per", "pfedfda"}
"""methods whose models are several networks, which only a program holds"""
"""a method whose model has two heads"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)


def deployed(home: Path, method: str, **changes: Any) -> hw.Run:
    sites = {c: write_site(home / f"site{c}", [c]) for c in range(5)}
    return run_deployment(
        LocalTransport(sites), experiment(method, sampling={"ratio": 1.0}, rounds=1, **changes), home / "run"
    )


def test_the_server_has_the_global_model_and_says_where_the_others_are(tmp_path: Path) -> None:
    run = deployed(tmp_path, "fedavg")
    simulated = hw.run(experiment("fedavg", sampling={"ratio": 1.0}, rounds=1), tmp_path / "local")
    x = Models(simulated).data.dataset.x[:7]
    model = run.global_model()
    assert np.array_equal(model.infer(x).scores, simulated.global_model().infer(x).scores)
    assert model.classes == ("0", "1", "2", "3"), "sites tell no names"
    with pytest.raises(SystemExit) as end:
        main(["export", str(run.path), "--global", "--format", "torch", "-o", str(tmp_path / "out")])
    assert end.value.code == 0
    np.testing.assert_allclose(hw.load_model(tmp_path / "out").infer(x).scores, model.infer(x).scores, atol=1e-5)
    with pytest.raises(RunError, match="at the sites that trained them: there, use headwise site export SITE") as told:
        run.model(at=2)
    name = re.findall(r"--run (\S+) --client 2", str(told.value))[0]
    export(tmp_path / "site2" / "site.toml", name, 2, tmp_path / "mine", "torch")
    mine = hw.load_model(tmp_path / "mine").infer(x).scores
    np.testing.assert_allclose(mine, simulated.model(at=2).infer(x).scores, atol=1e-5)
    with pytest.raises(RunError, match="at the sites that trained them"):
        run.adapt(x, [0] * 7)


def test_methods_without_a_global_model_and_damaged_folders_get_a_sentence(tmp_path: Path) -> None:
    run = deployed(tmp_path, "fedper")
    with pytest.raises(RunError, match="fedper has no global model"):
        run.global_model()
    copy = hw.Run(shutil.copytree(run.path, tmp_path / "copy"))
    for text in ("{}", '{"facts": [3]}', '{"facts": []}'):
        (copy.path / "sites.json").write_text(text)
        with pytest.raises(RunError, match=r"sites\.json is damaged"):
            hw.Run(copy.path).global_model()


@pytest.mark.parametrize(
    "method", [*SOME, *(pytest.param(m, marks=pytest.mark.all_methods) for m in list_names("method"))]
)
def test_a_site_exports_its_own_model_of_every_method(method: str, tmp_path: Path) -> None:
    """What it predicts is what the run measured there."""
    run = deployed(tmp_path, method)
    (held,) = list_holdings(tmp_path / "site3" / "site.toml")
    composed = method in COMPOSED
    export(tmp_path / "site3" / "site.toml", held.run, 3, tmp_path / "mine", "onnx" if composed else "torch")
    simulated = hw.run(experiment(method, sampling={"ratio": 1.0}, rounds=1), tmp_path / "local")
    data = Models(simulated).data
    test = data.parts[3].test
    right = hw.load_model(tmp_path / "mine").infer(data.dataset.x[test]).scores.argmax(1) == data.dataset.y[test]
    line = next(each for each in run.clients if (each["round"], each["client"]) == (1, 3))
    assert right.mean() == (line.get("pre", {}).get("test") or {})["accuracy"]
