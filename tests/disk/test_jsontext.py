"""JSON that every reader takes: no NaN, no infinity, wherever they stand."""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.disk.jsontext import leaves, to_json, to_toml


class Pair(NamedTuple):
    first: float
    second: Any


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def strictly(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(VALUES)
def test_whatever_is_written_is_json(value: Any) -> None:
    strictly(to_json(value))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(bad: float) -> None:
    assert strictly(to_json({"a": [bad, 1.5], "b": (bad, Pair(bad, [bad]))})) == {
        "a": [None, 1.5],
        "b": [None, [None, [None]]],
    }


def test_finite_values_are_as_json_dumps_writes_them() -> None:
    """Signatures and folders' names are hashes of such texts."""
    value = {"b": [1, 2.5, "ü", None, True], "a": {"x": 1e-9}}
    assert to_json(value) == json.dumps(value)
    assert to_json(value, sort_keys=True, indent=1) == json.dumps(value, sort_keys=True, indent=1)


def test_leaves_have_full_names() -> None:
    assert dict(leaves({"train": {"lr": 0.1, "none": {}}, "seed": 0})) == {"train.lr": 0.1, "seed": 0}
    assert [*leaves({"seconds": {"workers": {"idle": 1}}}, between="/")] == [("seconds/workers/idle", 1)]


@given(st.text() | st.booleans() | st.lists(st.text()))
def test_toml_reads_what_is_written_for_it(value: Any) -> None:
    assert tomllib.loads(f"v = {to_toml(value)}")["v"] == value
