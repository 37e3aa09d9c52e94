"""The torch format: weights, and a network that our code builds from its name and numbers, or the caller passes."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_runs import check_refused, raw, rewrite, small_run
from torch import Tensor, nn

import headwise as hw
from headwise.disk.jsontext import to_json
from headwise.errors import ConfigError, RunError
from headwise.exports.run_models import Models
from headwise.records import Packed, from_bytes, to_bytes
from headwise.settings.experiment import experiment_from

NAME = "weights.safetensors"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    return small_run(home / "run", "fedrep", rounds=1).model(0).save(home / "torch", "torch")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


class Net(nn.Module):
    """A network of the user's own, whose second layer is the head."""

    def __init__(self, classes: int, width: int = 7) -> None:
        super().__init__()
        self.first = nn.Linear(20, width)
        self.second = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def wide(classes: int) -> nn.Module:
    return Net(classes, 8)


def test_a_folder_is_a_card_and_weights(exported: Path) -> None:
    assert sorted(p.name for p in exported.iterdir()) == ["card.json", NAME]
    model = hw.Run(exported.parent / "run").model(0)
    x = raw(Models(hw.Run(exported.parent / "run")), 0)
    loaded = hw.load_model(exported)
    assert loaded.card["network"]["model"] == {"name": "mlp", "hidden": 64, "layers": 1}
    np.testing.assert_allclose(loaded.predict_proba(x), model.predict_proba(x), rtol=0, atol=1e-6)
    assert str(loaded.module) == str(model.module)
    assert all(torch.equal(a, b) for a, b in zip(loaded.module.parameters(), model.module.parameters(), strict=True))


def test_a_network_of_your_own_is_passed_again(tmp_path: Path) -> None:
    """As a class, a factory, an object or a name."""
    run = small_run(tmp_path / "run", "fedrep", rounds=1, model=Net)
    model = run.model(0)
    x = raw(Models(run), 0)
    folder = model.save(tmp_path / "net", "torch")
    assert hw.load_model(folder, Net).card["network"]["model"] == {"name": "network", "called": "Net", "head": ""}
    untouched = Net(10)
    before = untouched.first.weight.clone()
    for network in (Net, lambda classes: Net(classes), untouched, f"{__file__}:Net"):
        np.testing.assert_allclose(
            hw.load_model(folder, network=network).predict_proba(x), model.predict_proba(x), atol=1e-6
        )
    assert torch.equal(untouched.first.weight, before)
    check_refused(
        folder, r"holds the weights of Net, .* load it with hw.load_model\(folder, network=Net\), or export it as ONNX"
    )
    check_refused(folder, r"'body.first.weight' is float32 \[7, 20\], but in the network float32 \[8, 20\]", wide)
    check_refused(folder, "must return a torch.nn.Module", lambda: 3)
    program = model.save(tmp_path / "program")
    with pytest.raises(ConfigError, match=r"network is given, but .*model.onnx is a program"):
        hw.load_model(program, Net)


def test_models_of_several_parts_are_programs(tmp_path: Path) -> None:
    model = small_run(tmp_path / "run", "fedrod", rounds=1).model(0)
    with pytest.raises(ConfigError, match="a model of fedrod is a Composed: choose the format onnx"):
        model.save(tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()


def of_network(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda card: card["network"]["model"].update(changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_network(hidden=65_536, layers=100), "'body.1.weight' is .* but in the network|needs about"),
        (of_network(hidden=10**12), "hidden is 1000000000000"),
        (of_network(hidden=63), r"'body.1.weight' is float32 \[64, 20\], but in the network float32 \[63, 20\]"),
        (of_network(layers=2), "'body.3.weight' is missing"),
        (of_network(depth=2), "depth is not a setting"),
        (of_network(name="linear", hidden=1), "hidden is not a setting"),
        (of_network(name="evil.py"), "names the model 'evil.py', which Headwise does not have"),
        (of_network(name="evil:Net"), "names the model 'evil:Net'"),
        (of_network(name="network", factory="evil:Net"), "holds the weights of a network of your own"),
        (of_network(name="fcn"), "can't be used as a model"),
        (lambda card: card["network"].update(vocabulary=-1), "can't be used as a model"),
        (lambda card: card["network"].update(vocabulary=10**12), "can't be used as a model"),
        (lambda card: card["network"].update(centre=[1.0]), "its centre and spread must be of 10 targets"),
        (lambda card: card["network"].pop("spread"), "its network.spread is missing"),
        (lambda card: card["inputs"].update(shape=[21]), "'body.1.weight' is"),
        (lambda card: card["inputs"].update(shape=[2**40]), "its shape is"),
        (lambda card: card.update(classes=["a"]), "'head.weight' is"),
    ],
)  # fmt: skip
def test_cards_that_ask_for_another_network(folder: Path, change: Callable[[dict[str, Any]], None], why: str) -> None:
    rewrite(folder, change)
    check_refused(folder, why)


def without_one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict([*tensors.items()][1:])


def with_one_more(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "more": torch.zeros(1)}


def double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.double() for name, t in tensors.items()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_one, "is missing, but in the network"),
        (with_one_more, r"'more' is float32 \[1\], but in the network missing"),
        (double, "is float64"),
    ],
)  # fmt: skip
def test_weights_of_another_network(
    folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], why: str
) -> None:
    tensors = from_bytes((folder / NAME).read_bytes()).tensors
    rewrite(folder, files={NAME: to_bytes(Packed(change(tensors), {}))})
    check_refused(folder, why)
    rewrite(folder, files={NAME: b"not weights"})
    check_refused(folder, "can't be used as a model")


def test_layers_that_no_machine_could_hold(tmp_path: Path) -> None:
    """A small file with large images: refused before anything is computed."""
    settings = {"method": "fedavg", "data": "shapes", "partition": "natural", "rounds": 1}
    experiment = experiment_from({**settings, "model": "fcn:channels=1024:layers=1"})
    folder = hw.run(experiment, tmp_path / "run", data_dir=tmp_path).global_model().save(tmp_path / "out", "torch")
    channels = hw.load_model(folder).inputs.shape[0]
    rewrite(folder, lambda card: card["inputs"].update(shape=[channels, 6000, 6000]))
    check_refused(folder, "its network needs about")


def test_a_program_of_torch_is_never_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's importer imports the module that a tree spec names, here `boot.py` in the folder."""
    context = {"default_factory_module": "boot", "default_factory_name": "make", "dict_context": to_json([])}
    spec = to_json([1, {"type": "collections.defaultdict", "context": to_json(context), "children_spec": []}])
    (folder / "boot.py").write_text("make = dict\n")
    rewrite(folder, files={"model.pt2": archive_of_torch(spec)})
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with suppress(RunError):
        hw.load_model(folder)
    assert "boot" not in sys.modules
    rewrite(folder, lambda card: card["files"].pop(NAME))
    check_refused(folder, "names neither model.onnx nor weights and a network: export it again")


def archive_of_torch(spec: str) -> bytes:
    """A program of `torch.export` with a layer whose inputs have this tree spec."""
    made = io.BytesIO()
    changed = io.BytesIO()
    torch.export.save(torch.export.export(nn.Sequential(nn.Linear(20, 10)), (torch.zeros(2, 20),)), made)
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = b"" if name.endswith("sample_inputs/model.pt") else old.read(name)
            if name.endswith("models/model.json"):
                tree = json.loads(data)
                calls = tree["graph_module"]["module_call_graph"]
                calls[-1]["signature"] = {**calls[0]["signature"], "in_spec": spec}
                data = json.dumps(tree).encode()
            new.writestr(name, data)
    return changed.getvalue()
