"""From TOML, overrides, strings, tables and instances to one `Experiment`, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.app import registry
from headwise.data.partition.dirichlet import Dirichlet
from headwise.data.sources.digits import Digits
from headwise.errors import ConfigError
from headwise.methods.fedprox import FedProx
from headwise.methods.fedrep import FedRep
from headwise.models.mlp import MLP
from headwise.settings.choices import Choice
from headwise.settings.experiment import LARGEST, Experiment, experiment_from, override, put, read_toml
from headwise.settings.fields import field_types, literal
from headwise.settings.names import list_names
from headwise.settings.options import Sampling, Train

TOML = """
method = "fedprox:mu=0.1"
rounds = 7
model = { name = "mlp", hidden = 8 }

[data]
name = "synthetic"
samples = 100

[train]
lr = 1
batch = 5
"""


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(TOML)
    found = experiment_from(read_toml(path))
    assert registry.make("method", found.method) == FedProx(mu=0.1)
    assert found.data == Choice("synthetic", {"samples": 100})
    assert found.model == (Choice("mlp", {"hidden": 8}),)
    assert found.train == Train(lr=1.0, batch=5)
    assert found.rounds == 7
    assert found.seed == 0


@pytest.mark.parametrize("text", ["a = ", "[train", "\xff\xfe", "a = 1\na = 2"])
def test_bad_toml_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(path)


def test_a_huge_toml_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    path.write_text("#" * (LARGEST + 1))
    with pytest.raises(ConfigError, match=r"huge.toml has more than 16,777,216 characters\."):
        read_toml(path)


def test_missing_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize("name", list_names("data"))
def test_samples_that_belong_to_clients_stay_with_them(name: str) -> None:
    belong = name in ("own", "heart-disease", "office-caltech10")
    data = {"name": "own", "path": "data.toml"} if name == "own" else name
    assert Experiment(data=data).partition.name == ("natural" if belong else "dirichlet")
    assert Experiment(data=data, partition="iid").partition.name == "iid"


def test_tree_survives_json() -> None:
    first = Experiment(
        method="fedrep:head_epochs=3",
        model=[MLP(8), "linear"],
        train=Train(lr=0.3),
        sampling=Sampling(0.5, 0.2),
        clients=4,
    )
    again = experiment_from(json.loads(json.dumps(first.to_plain())))
    assert again == first
    resolved = registry.resolve_all(first)
    assert experiment_from(json.loads(json.dumps(resolved.to_plain()))) == resolved
    assert resolved.method.options["head_epochs"] == 3
    assert resolved.data.options == Digits().__dict__


@pytest.mark.parametrize(
    "given",
    [
        "fedrep:head_epochs=3",
        "fedrep:head-epochs=3",
        {"name": "fedrep", "head_epochs": 3},
        Choice("fedrep", {"head_epochs": 3}),
        FedRep(head_epochs=3),
    ],
)
def test_forms_of_a_choice(given: Any) -> None:
    found = Experiment(method=given).method
    assert registry.make("method", found) == FedRep(head_epochs=3)
    whole = registry.resolve("method", found)
    assert whole.options["head_epochs"] == 3
    assert whole.options.keys() == field_types(FedRep).keys()
    assert registry.make("method", whole) == FedRep(head_epochs=3)


def test_instances_of_every_kind() -> None:
    found = Experiment(method=FedProx(mu=0.5), data=Digits(), partition=Dirichlet(0.3), model=MLP(9))
    assert (found.method.name, found.data.name, found.partition.name) == ("fedprox", "digits", "dirichlet")
    assert registry.make("model", found.model[0]) == MLP(9)


def test_values_by_position_go_in_the_order_of_the_fields() -> None:
    assert registry.make("model", Choice.parse("mlp:16:2", "model")) == MLP(hidden=16, layers=2)
    assert registry.make("model", Choice.parse({"name": "mlp", "values": ["16", "2"]}, "model")) == MLP(
        hidden=16, layers=2
    )
    assert registry.make("model", Choice.parse("mlp:16:layers=2", "model")) == MLP(hidden=16, layers=2)


def test_preset() -> None:
    found = Choice.parse("fedgmh@oa:beta=0.25", "method")
    made = registry.make("method", found)
    assert (made.heads, made.merge, made.beta) == ("one", "average", 0.25)
    assert registry.resolve("method", found).name == "fedgmh"
    assert registry.make("method", registry.resolve("method", found)) == made


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": "fedag"}, "method is 'fedag', which is not known: did you mean"),
        ({"method": "fedrep:head_epoch=3"}, r"method\.head_epoch is not a setting: did you mean 'head_epochs'"),
        ({"method": "fedrep:head_epochs=-1"}, r"method\.head_epochs is -1, but must be from 0"),
        ({"model": "mlp:0"}, r"model\.hidden is 0, but must be from 1"),
        ({"model": "mlp:3:4:5"}, r"model is 'mlp:3:4:5', but mlp has 2 options \(hidden, layers\)"),
        ({"method": "fedgmh@cod"}, "no such preset: did you mean 'code'"),
        ({"method": "fedavg@x"}, "no such preset: there are none"),
        ({"method": "none/such.py"}, "no such file"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"partition": "dirichlet:0"}, r"partition\.\w+ is 0"),
        ({"model": "resnet"}, "model is 'resnet', which is not known: did you mean 'resnet18'"),
    ],
)
def test_mistakes_in_a_choice(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        registry.resolve_all(Experiment(**changes))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"round": 3}, "round is not a setting: did you mean 'rounds'?"),
        ({"train": {"learning_rate": 1}}, "train.learning_rate is not a setting: did you mean 'lr'?"),
        ({"train": {"lr_deacy": 1}}, "train.lr_deacy is not a setting: did you mean 'lr_decay'?"),
        ({"rounds": 0}, "rounds is 0, but must be from 1 to 1,000,000."),
        ({"rounds": "5"}, "rounds is '5', but must be a whole number."),
        ({"sampling": {"ratio": 0}}, "sampling.ratio is 0.0, but must be above 0 and at most 1."),
        (
            {"sampling": {"ratio": 0.2, "ratio_low": 0.5}},
            "sampling.ratio_low is 0.5, but must be at most sampling.ratio",
        ),
        ({"evaluate": {"moments": ["pre", "pots"]}}, "evaluate.moments[1] is 'pots': did you mean 'post'?"),
        ({"buffers": "none"}, "buffers is 'none': allowed are all, local, params."),
        ({"method": 5}, "method is 5, but must be a name or a table with a name."),
        ({"method": {"mu": 5}}, "method is {'mu': 5}, but must be a name or a table with a name."),
        ({"method": ""}, "method is '', but must be a name"),
        ({"train": 5}, "train is 5, but must be a table with epochs"),
    ],
)
def test_mistakes_in_the_tree(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from(values)
    assert str(caught.value).startswith(text)


def test_override() -> None:
    base = {"method": "fedprox", "train": {"lr": 0.1}, "rounds": 3}
    found = override(base, ["train.lr=0.5", "method.mu=0.2", "rounds = 9", "data=digits", "clients=none"])
    assert found == {
        "method": {"name": "fedprox", "mu": 0.2},
        "train": {"lr": 0.5},
        "rounds": 9,
        "data": "digits",
        "clients": "none",
    }
    assert base == {"method": "fedprox", "train": {"lr": 0.1}, "rounds": 3}
    assert experiment_from(found).clients is None


def test_later_overrides_win() -> None:
    assert override({}, ["a.b=1", "a.b=2", "a.c=3"]) == {"a": {"b": 2, "c": 3}}


def test_override_keeps_the_options_of_a_text() -> None:
    found = override({"method": "fedgmh:beta=0.25"}, ["method.heads=one"])
    made = registry.make("method", experiment_from(found).method)
    assert (made.beta, made.heads) == (0.25, "one")


@pytest.mark.parametrize("change", ["train.lr", "=3", " = 3", ""])
def test_override_without_a_sign(change: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like train\.lr=0\.1"):
        override({}, [change])


def test_override_below_a_value() -> None:
    with pytest.raises(ConfigError, match=r"rounds\.x can't be set: rounds is 3, not a table"):
        put({"rounds": 3}, "rounds.x", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1.5", 1.5), ("1e-3", 1e-3), ("true", True), ("True", "True"), ("fedavg", "fedavg"), 
        ("75/25", "75/25"), ('"5"', "5"), ("[1, 2]", [1, 2]), ("", ""), ("8:1:1", "8:1:1"), ("1_000", 1000),
    ],
)  # fmt: skip
def test_literal(text: str, value: Any) -> None:
    found = literal(text)
    assert (found, type(found)) == (value, type(value))


def test_experiment_is_frozen_and_compares_by_value() -> None:
    a, b = Experiment(method="fedavg", seed=1), Experiment(method={"name": "fedavg"}, seed=1)
    assert a == b != dataclasses.replace(a, seed=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.seed = 5  # type: ignore[misc]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "lr", "x", "values"]), inner),
    max_leaves=4,
)
keys = st.sampled_from([f.name for f in dataclasses.fields(Experiment)])


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(keys, junk, max_size=3))
def test_any_values_are_an_experiment_or_a_config_error(values: dict[str, Any]) -> None:
    try:
        made = experiment_from(values)
    except ConfigError:
        return
    assert experiment_from(json.loads(json.dumps(made.to_plain()))) == made


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=12), max_size=3))
def test_any_override_is_made_or_refused(changes: list[str]) -> None:
    try:
        override({"method": "fedavg", "train": {"lr": 0.1}}, changes)
    except ConfigError:
        return
