"""Random TOML files, flags and tables become an experiment or a one-sentence error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzzing import damaged, fuzzed, try_call
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import ConfigError
from headwise.settings.experiment import Experiment, experiment_from, override, read_toml
from headwise.settings.options import Inject

GOOD = b"""
method = "fedrep:head_epochs=2"
partition = { name = "dirichlet", alpha = 0.1 }
model = ["mlp:8", "linear"]
rounds = 3
[train]
lr = 0.05
lr_decay_per = "round"
[sampling]
ratio = 1.0
ratio_low = 0.5
[faults]
inject = "drop=0.3,nan=0.05"
on_failure = "retry"
[engine]
workers = "threads:2"
"""
NAMES = ("method", "data", "partition", "model", "train", "sampling", "faults", "engine", "rounds", "split", "nothing")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["fedavg", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def read(values: Any) -> None:
    if found := try_call(lambda: experiment_from(values), ConfigError):
        assert experiment_from(found.to_plain()) == found


@fuzzed
@given(damaged(GOOD))
def test_damaged_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "experiment.toml"
    path.write_bytes(content)
    if values := try_call(lambda: read_toml(path), ConfigError, str(path)):
        read(values)


@fuzzed
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_any_tables(values: dict[str, Any]) -> None:
    read(values)


@fuzzed
@given(st.lists(st.text(max_size=20) | st.sampled_from(["train.lr=1", "method.x=2", "a.b.c=[1"]), max_size=3))
def test_any_changes(changes: list[str]) -> None:
    if values := try_call(lambda: override({"method": "fedavg"}, changes), ConfigError):
        read(values)


@fuzzed
@given(st.text(alphabet="dropnaslwtice=.,0123456789", max_size=24) | damaged(b"drop=0.3,nan=0..0.5").map(repr))
def test_any_faults(text: str) -> None:
    if found := try_call(lambda: Inject.parse(text, "faults.inject"), ConfigError, "faults.inject"):
        assert Inject.parse(found.to_plain(), "again") == found
        assert 0 <= sum(high for _, _, high in found.shares) <= 1 + 1e-9


def test_the_good_one_is_good(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_bytes(GOOD)
    assert isinstance(experiment_from(read_toml(tmp_path / "good.toml")), Experiment)
