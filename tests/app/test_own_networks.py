"""A model may be a network, a class, a function, package.module:factory or file.py:factory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import own_nets
import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.app import inputs, registry
from headwise.app.registry import load_layer
from headwise.errors import ConfigError, HeadwiseError, RunError
from headwise.models.base import Task
from headwise.models.network import as_split, describe_network, rebuild_network
from headwise.models.split import SplitModel
from headwise.settings.choices import Choice
from same_runs import rows, stop

RNG = np.random.default_rng(0)
CLIENTS = {name: (RNG.normal(size=(16, 3)), np.arange(16) % 2) for name in ("va", "rome")}
TASK = Task((3,), 2)


def layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def main_only(kind: type[Any]) -> type[Any]:
    """As if it were defined in a notebook."""
    return type(kind.__name__, (kind,), {"__module__": "__main__", "__qualname__": kind.__name__})


def rounds(run: hw.Run) -> list[Any]:
    return rows(run, "samples")


KINDS = [
    own_nets.Small,
    own_nets.small,
    "own_nets:Small",
    "own_nets:tall",
    "own_nets:Small:head=out",
    layers(),
    hw.split(own_nets.Small(), "out"),
    own_nets.Small(2),
    main_only(own_nets.Small),
    lambda: layers(),
    nn.Linear(3, 2),
]


@pytest.mark.parametrize("model", KINDS, ids=range(len(KINDS)))
def test_any_kind_of_network_trains(tmp_path: Path, model: Any) -> None:
    run = hw.fit(CLIENTS, method="fedah", model=model, rounds=1, out=tmp_path / "run")
    assert 0 <= run.accuracy() <= 1
    assert run.manifest["experiment"]["model"][0]["name"] == "network"


def test_the_weights_of_an_instance_are_the_initial_ones() -> None:
    net = own_nets.Small()
    made = registry.make("model", Choice("network", given=net)).build(TASK)
    assert torch.equal(made.head.weight, net.out.weight)
    assert torch.equal(made.body.first.weight, net.first.weight)
    assert made.head.weight is not net.out.weight


def test_a_class_starts_from_the_seed(tmp_path: Path) -> None:
    one, two = (hw.fit(CLIENTS, model=own_nets.Small, rounds=1, out=tmp_path / str(k)) for k in range(2))
    other = hw.fit(CLIENTS, model=own_nets.Small, rounds=1, out=tmp_path / "other", seed=1)
    assert rounds(one) == rounds(two)
    assert rounds(one) != rounds(other)


@pytest.mark.parametrize(
    "given",
    ["net.py:Net", "net.py", "net.py:make"],
)
def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from torch import nn\n\nclass Net(nn.Sequential, nn.Module):\n    def __init__(self, classes):\n"
    text += "        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, classes))\n\n"
    Path("net.py").write_text(text + "def make():\n    return Net(2)\n")
    run = hw.fit(CLIENTS, model=given, rounds=1, out="run")
    factory = run.manifest["experiment"]["model"][0]["factory"]
    assert factory == f"{tmp_path / 'net.py'}:{'make' if given.endswith('make') else 'Net'}"


def test_a_file_may_define_dataclasses_and_be_mended(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
    text += "@dataclass\nclass Sizes:\n    hidden: int = 5\n\ndef make():\n    return Sizes().hidden\n"
    (tmp_path / "sizes.py").write_text(f"{text}\nraise RuntimeError\n")
    with pytest.raises(ConfigError, match="which can't be imported: RuntimeError"):
        registry.load_function(f"{tmp_path}/sizes.py:make", "model")
    (tmp_path / "sizes.py").write_text(text)
    assert registry.load_function(f"{tmp_path}/sizes.py:make", "model")() == 5


HOW = 'name the layer that is the head: headwise.split(net, "layer").'
GIVEN = "it can only be given task, shape, vocabulary, classes, num_classes, n_classes."
ALLOWED = "but must be a name, a network (torch.nn.Module) or a table with a name."
MISFITS: list[tuple[Any, str]] = [
    (
        nn.Sequential(nn.Linear(3, 5)),
        "model is Sequential, whose output has the shape [samples, 5], but the data has 2 classes: its last layer must "
        "have 2 outputs.",
    ),
    (
        nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)),
        "model is Sequential, which ends with Softmax: leave it out, because the loss takes plain scores.",
    ),
    (
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        f"model is Sequential, which ends with ReLU, not with a Linear layer: {HOW}",
    ),
    (
        own_nets.Added,
        f"model is 'own_nets:Added', which computes its output outside its layers, not with a Linear layer: {HOW}",
    ),
    (
        SplitModel(nn.Linear(3, 2), nn.Identity()),
        "model is SplitModel, whose head has no weights to train.",
    ),
    (
        nn.Linear(7, 2),
        "model is Linear, which fails with samples of shape [3]: RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x3 and 7x2).",
    ),
    (own_nets.Pair(), "model is Pair, which returns a tuple, but must return a tensor of scores."),
    (own_nets.broken, "model is 'own_nets:broken', which failed: ValueError: oh."),
    (own_nets.needy, f"model is 'own_nets:needy', which needs 'width': {GIVEN}"),
    (own_nets.number, "model is 'own_nets:number', which returned a int, but must return a torch.nn.Module."),
    ("no.such:thing", "model is 'no.such:thing', but there is no module 'no'."),
    ("own_nets:Smal", "model is 'own_nets:Smal', but own_nets has no function or class 'Smal'."),
    (
        "own_nets:Small:hidden=3",
        "model is 'own_nets:Small:hidden=3', but after the factory only head=LAYER may follow, not 'hidden=3'.",
    ),
    ("own_nets:Small:head=oot", "head is 'oot', but the layers of this Small are: first, out."),
    (3.5, f"model[0] is 3.5, {ALLOWED}"),
    ([CLIENTS["va"][0]], f"model[0] is a ndarray, {ALLOWED}"),
]


@pytest.mark.parametrize(("model", "said"), MISFITS, ids=range(len(MISFITS)))
def test_a_network_that_does_not_fit_is_one_sentence(tmp_path: Path, model: Any, said: str) -> None:
    with pytest.raises(HeadwiseError) as error:
        hw.fit(CLIENTS, model=model, rounds=1, out=tmp_path / "run")
    assert str(error.value) == said
    assert not (tmp_path / "run").exists()


def test_a_layer_that_is_not_last_is_no_head() -> None:
    with pytest.raises(ConfigError, match="whose output is not the output of its layer 'a'"):
        as_split(own_nets.Added(), TASK, "a", "model is Added")


def test_a_layer_that_is_used_twice_is_no_head() -> None:
    class Same(own_nets.Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.a(x))

    with pytest.raises(ConfigError, match="uses its last layer 'a' 2 times"):
        as_split(Same(), Task((3,), 3), "", "model is Same")


def test_weights_that_are_not_finite_are_refused() -> None:
    net = layers()
    net[0].weight.data[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"whose body\.0\.weight has values that are not finite"):
        as_split(net, TASK, "", "model is net")


def interrupted(folder: Path, model: Any, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        hw.fit(CLIENTS, model=model, rounds=3, out=folder, observers=[stop], **settings)


@pytest.mark.parametrize("model", [layers(), own_nets.Small, hw.split(own_nets.Small(), "out")], ids=range(3))
def test_resume_needs_no_object_where_others_can_build_the_network(tmp_path: Path, model: Any) -> None:
    whole = hw.fit(CLIENTS, method="fedah", model=model, rounds=3, out=tmp_path / "whole")
    interrupted(tmp_path / "cut", model, method="fedah")
    assert rounds(hw.resume(tmp_path / "cut")) == rounds(whole)


@pytest.mark.parametrize("instance", [False, True])
def test_a_network_of_a_notebook_is_passed_again(
    tmp_path: Path, instance: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = main_only(own_nets.Small)
    model = kind() if instance else kind
    whole = hw.fit(CLIENTS, method="fedah", model=model, rounds=3, out=tmp_path / "whole")
    interrupted(tmp_path / "cut", model, method="fedah")
    monkeypatch.setattr(inputs, "_OBJECTS", {})  # another session
    with pytest.raises(RunError) as error:
        hw.resume(tmp_path / "cut")
    assert str(error.value) == (
        f"{tmp_path / 'cut'} uses Small, defined in a notebook or script: pass it again, as in "
        f"headwise.resume('{tmp_path / 'cut'}', model=Small)."
    )
    again = kind() if instance else kind  # with other weights: those of the run count
    assert rounds(hw.resume(tmp_path / "cut", model=again)) == rounds(whole)


def test_a_session_has_the_models_of_its_own_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, x = main_only(own_nets.Small), CLIENTS["va"][0]
    run = hw.fit(CLIENTS, method="fedah", model=kind(), rounds=1, out=tmp_path / "run")
    found = run.model("va").predict_proba(x)
    monkeypatch.setattr(inputs, "_OBJECTS", {})  # another session
    with pytest.raises(RunError, match=r"pass it again, as in headwise\.resume"):
        hw.Run(tmp_path / "run").model("va")
    again = hw.resume(tmp_path / "run", model=kind())
    assert np.array_equal(again.model("va").predict_proba(x), found)


def test_another_network_is_refused_on_resume(tmp_path: Path) -> None:
    kind = main_only(own_nets.Small)
    interrupted(tmp_path / "cut", kind())
    with pytest.raises(ConfigError, match="Small of this run has other layers: pass the same network"):
        hw.resume(tmp_path / "cut", model=kind(hidden=7))


def test_a_network_of_a_notebook_runs_in_threads_not_in_processes(tmp_path: Path) -> None:
    kind = main_only(own_nets.Small)
    serial = hw.fit(CLIENTS, model=kind, rounds=2, out=tmp_path / "one")
    threads = hw.fit(CLIENTS, model=kind, rounds=2, out=tmp_path / "two", workers="threads:2")
    assert rounds(serial) == rounds(threads)
    with pytest.raises(ConfigError, match="model is Small, defined in a notebook or script, where other processes"):
        hw.fit(CLIENTS, model=kind, rounds=2, out=tmp_path / "three", workers=2)


def test_processes_read_the_network_from_the_folder(tmp_path: Path) -> None:
    net = layers()
    serial = hw.fit(CLIENTS, model=net, rounds=1, out=tmp_path / "one")
    pool = hw.fit(CLIENTS, model=net, rounds=1, out=tmp_path / "two", workers=2)
    assert rounds(serial) == rounds(pool)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "cut", layers())
    (path,) = (tmp_path / "cut" / "inputs").glob("model-*.safetensors")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ConfigError, match="which has changed"):
        hw.resume(tmp_path / "cut")


def test_a_described_network_is_the_same_network() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    tied[0].bias.requires_grad_(False)
    odd = nn.Sequential(nn.Conv1d(1, 2, 3, padding="same"), nn.BatchNorm1d(2), nn.Flatten(), nn.LazyLinear(2))
    odd(torch.zeros(4, 1, 5))
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    for net, shape in (
        (tied, (2, 3)),
        (odd, (2, 1, 5)),
        (encoder, (2, 3, 4)),
        (hw.split(own_nets.Small(), "out"), (2, 3)),
    ):
        data = describe_network(net)
        assert data is not None
        twin = rebuild_network(data, "net", load_layer)
        assert str(twin) == str(net)
        x = torch.rand(shape)
        assert torch.equal(twin.eval()(x), net.eval()(x))
        assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in net.parameters()]
        assert describe_network(twin.train()) == describe_network(net.train())


def test_what_is_more_than_layers_is_not_described() -> None:
    hooked, odd = layers(), layers()
    hooked.register_forward_hook(print)
    odd.extra = Path()  # pyright: ignore[reportAttributeAccessIssue]
    assert [describe_network(n) for n in (hooked, odd, main_only(own_nets.Small)(), nn.LazyLinear(2))] == [None] * 4


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"torch.nn.modules.linear:Linear", b"shutil:rmtree                 ", "the network has a shutil:rmtree"),
        (b"torch.nn.modules.linear:Linear", b"pathlib:PosixPath             ", "the network has a pathlib:PosixPath"),
        (b"torch.nn.modules.linear:Linear", b"torch.nn.modules.linear:Lineal", "which can't be imported here"),
        (b"parameters", b"parametres", "x can't be read as a network: KeyError"),
        (
            b'\\"function\\": \\"relu\\"',
            b'\\"function\\": \\"math\\"',
            "x can't be read as a network: KeyError: 'math'",
        ),
    ],
)
def test_a_damaged_or_hostile_description_is_refused(before: bytes, after: bytes, said: str) -> None:
    """A function is one of a table: torch's module of functions also has modules of Python."""
    data = describe_network(nn.Sequential(layers(), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)))
    assert data is not None and before in data
    with pytest.raises(ConfigError, match=said):
        rebuild_network(data.replace(before, after), "x", load_layer)


def test_compare_and_run_again_with_an_object(tmp_path: Path) -> None:
    net = layers()
    base = hw.Experiment(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), rounds=1, clients=3, fraction=0.1)
    first = hw.compare(base, ["fedavg", "fedah"], out=tmp_path / "both")
    times = [(run.path / "result.json").stat().st_mtime_ns for line in first.setting.lines for run in line.runs]
    again = hw.compare(base, ["fedavg", "fedah"], out=tmp_path / "both")
    assert times == [(run.path / "result.json").stat().st_mtime_ns for line in again.setting.lines for run in line.runs]
    with pytest.raises(HeadwiseError):
        hw.compare(hw.Experiment(model=net, rounds=1, clients=3, fraction=0.1), ["fedavg"], out=tmp_path / "both")


def test_sites_run_no_network_of_a_users_own(tmp_path: Path) -> None:
    from headwise.sites.facts import resolve_for_sites

    experiment = hw.Experiment(data="heart-disease", partition="natural", clients=4, model="own_nets:Small")
    with pytest.raises(ConfigError, match="model is 'network', but sites only run what their own Headwise includes"):
        resolve_for_sites(experiment)
    assert json.loads(json.dumps(experiment.to_plain()))["model"][0]["factory"] == "own_nets:Small"


class Tied(nn.Module):
    """Body and head share values in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        for layer in (self.b, self.out):
            layer.register_buffer("scale", torch.ones(2))
        if how == "weight":
            self.out.weight = self.b.weight
        elif how == "bias":
            self.out.bias = self.a.bias
        elif how == "view":
            self.out.weight = nn.Parameter(self.b.weight.data.t())
        elif how == "slice":
            block = torch.rand(3, 2)
            self.b.weight, self.out.weight = nn.Parameter(block[:2]), nn.Parameter(block[1:])
        elif how == "buffer":
            self.out.scale = self.b.scale
        elif how == "layer":
            self.layers = nn.Sequential(self.a, self.b, self.out)
        elif how == "apart":
            block = torch.rand(4, 2)
            self.b.weight, self.out.weight = nn.Parameter(block[:2]), nn.Parameter(block[2:])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(self.a(x)))


@pytest.mark.parametrize("how", ["weight", "bias", "view", "slice", "buffer", "layer"])
@pytest.mark.parametrize("given", ["network", "split", "SplitModel"])
def test_a_head_that_shares_values_with_its_body_is_refused(how: str, given: str, tmp_path: Path) -> None:
    """It would be in what the server averages, although FedPer keeps it."""
    net = Tied(how)
    body = net.layers if how == "layer" else nn.Sequential(net.a, net.b)
    makes: dict[str, Any] = {"split": lambda: hw.split(net, "out"), "SplitModel": lambda: SplitModel(body, net.out)}
    make = makes.get(given, lambda: net)
    with pytest.raises(ConfigError, match=r"share their values, so that a private head would travel with the body: "):
        hw.fit(CLIENTS, model=make(), method="fedper", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_head_whose_weights_lie_beside_those_of_its_body_is_its_own() -> None:
    assert as_split(Tied("apart"), TASK, "", "model is Tied").head.weight.shape == (2, 2)


def test_a_family_of_ones_own_may_not_share_them_either(tmp_path: Path) -> None:
    (tmp_path / "twins.py").write_text(
        "from dataclasses import dataclass\nfrom torch import nn\nfrom headwise.models.base import Model\n"
        "from headwise.models.split import SplitModel\n\n@dataclass(frozen=True)\nclass Twins(Model):\n"
        "    def build(self, task):\n        a = nn.Linear(64, 10)\n        b = nn.Linear(10, 10)\n"
        "        b.bias = a.bias\n        return SplitModel(nn.Sequential(nn.Flatten(), a), b)\n"
    )
    with pytest.raises(ConfigError, match=r"model is '.*twins.py', whose head.bias and body.1.bias share their values"):
        hw.run(hw.Experiment(model=str(tmp_path / "twins.py"), clients=2, rounds=1), tmp_path / "run")


def test_a_model_with_a_network_of_ones_own_can_be_pickled(tmp_path: Path) -> None:
    model = hw.fit(CLIENTS, model=layers(), rounds=1, out=tmp_path / "run").model("va")
    again = pickle.loads(pickle.dumps(model))
    x = CLIENTS["va"][0]
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-5)
