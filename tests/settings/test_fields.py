"""Settings: types, ranges, help, and mistakes in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import ConfigError, nearest
from headwise.settings.fields import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Range,
    Share,
    Unit,
    build,
    check,
    convert,
    dump,
    field_help,
    field_types,
    type_words,
)


@dataclass(frozen=True)
class Inner:
    """A table in a table."""

    size: Count = 3
    """how big"""


@dataclass(frozen=True)
class Outer:
    """All kinds of settings."""

    name: str
    """a string that must be given"""
    lr: Positive = 0.1
    """a number"""
    n: Natural = 0
    """a whole
    number, in two lines"""
    on: bool = False
    mode: Literal["slow", "fast"] = "slow"
    """a choice"""
    limit: Count | None = None
    """a number or none"""
    many: tuple[float, ...] = ()
    """a list"""
    inner: Inner = field(default_factory=Inner)
    """a table"""


@dataclass(frozen=True)
class Child(Outer):
    """Inherits all of them."""

    more: int = 1
    """one more"""


FULL = {
    "name": "a",
    "lr": 0.5,
    "n": 2,
    "on": True,
    "mode": "fast",
    "limit": 4,
    "many": [1.0, 2.0],
    "inner": {"size": 5},
}


def test_build_and_dump() -> None:
    made = build(Outer, FULL)
    assert made == Outer("a", 0.5, 2, True, "fast", 4, (1.0, 2.0), Inner(5))
    assert dump(made) == FULL
    assert build(Outer, dump(made)) == made


def test_defaults() -> None:
    assert build(Outer, {"name": "a"}) == Outer("a")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "name is missing: it has no default."),
        ({"name": "a", "modes": 1}, "modes is not a setting: did you mean 'mode'?"),
        ({"name": "a", "inner": {"sise": 1}}, "inner.sise is not a setting: did you mean 'size'?"),
        ({"name": 5}, "name is 5, but must be a string."),
        ({"name": "a", "lr": "0.1"}, "lr is '0.1', but must be a number."),
        ({"name": "a", "lr": True}, "lr is True, but must be a number."),
        ({"name": "a", "lr": 0}, "lr is 0.0, but must be above 0 and at most 1,000,000."),
        ({"name": "a", "lr": math.nan}, "lr is nan, but must be a number."),
        ({"name": "a", "lr": math.inf}, "lr is inf, but must be a number."),
        ({"name": "a", "lr": 10**400}, "lr is inf, but must be a number."),
        ({"name": "a", "n": 1.0}, "n is 1.0, but must be a whole number."),
        ({"name": "a", "n": True}, "n is True, but must be a whole number."),
        ({"name": "a", "n": -1}, "n is -1, but must be from 0 to 1,000,000,000."),
        ({"name": "a", "on": 1}, "on is 1, but must be true or false."),
        ({"name": "a", "mode": "fats"}, "mode is 'fats': did you mean 'fast'?"),
        ({"name": "a", "mode": "?"}, "mode is '?': allowed are fast, slow."),
        ({"name": "a", "limit": 0}, "limit is 0, but must be from 1 to 1,000,000,000."),
        ({"name": "a", "many": 3.0}, "many is 3.0, but must be a list."),
        (
            {"name": "a", "many": "[b]"},
            "many is '[b]', but must be a list: in a shell, put the setting in single quotes.",
        ),
        ({"name": "a", "many": [1.0, "x"]}, "many[1] is 'x', but must be a number."),
        ({"name": "a", "inner": 3}, "inner is 3, but must be a table with size."),
        ({"name": "a", "inner": {"size": 0}}, "inner.size is 0, but must be from 1 to 1,000,000,000."),
        ({"name": None}, "name is None, but must be a string."),
    ],
)
def test_mistakes_are_one_sentence(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, values)
    assert str(caught.value) == text


def test_place_is_named_in_full() -> None:
    with pytest.raises(ConfigError, match=r"^method\.inner\.size is 'x'"):
        build(Outer, {"name": "a", "inner": {"size": "x"}}, "method")


def test_whole_numbers_are_numbers() -> None:
    found = build(Outer, {"name": "a", "lr": 1})
    assert found.lr == 1.0
    assert type(found.lr) is float


@pytest.mark.parametrize("value", [None, "none"])
def test_none(value: Any) -> None:
    assert build(Outer, {"name": "a", "limit": value}).limit is None


def test_instances_are_checked_too() -> None:
    check(Outer("a"))
    for wrong in (Outer("a", lr=-1.0), Outer("a", inner=Inner(0)), Outer(5), Outer("a", mode="x")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            check(wrong)


def test_help_stands_under_the_field() -> None:
    found = field_help(Outer)
    assert found["lr"] == "a number"
    assert found["n"] == "a whole number, in two lines"
    assert "on" not in found
    assert found.keys() == field_types(Outer).keys() - {"on"}
    assert field_help(Child) == found | {"more": "one more"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Count, "a whole number, from 1 to 1,000,000,000"),
        (Positive, "a number, above 0 and at most 1,000,000"),
        (Annotated[float, Range(0)], "a number, at least 0"),
        (Annotated[float, Range(0.5, above=True)], "a number, above 0.5"),
        (Literal["a", "b"], "a | b"),
        (Count | None, "a whole number, from 1 to 1,000,000,000 or none"),
        (tuple[float, ...], "list of a number"),
        (bool, "true or false"),
        (str, "a string"),
    ],
)
def test_types_in_words(kind: Any, words: str) -> None:
    assert type_words(kind) == words


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (Count, [1, 10**9], [0, 10**9 + 1]),
        (Natural, [0, 10**9], [-1]),
        (Positive, [1e-300, 1e6], [0.0, -1.0, 1.1e6]),
        (NonNegative, [0.0, 1e6], [-1e-300]),
        (Share, [1e-9, 1.0], [0.0, 1.0000001]),
        (Unit, [0.0, 1.0], [-0.1, 1.1]),
    ],
)
def test_ranges(kind: Any, inside: list[float], outside: list[float]) -> None:
    assert [convert(v, kind, "v") for v in inside] == inside
    for v in outside:
        with pytest.raises(ConfigError, match=r"^v is "):
            convert(v, kind, "v")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sets(st.sampled_from([*FULL])), st.dictionaries(st.sampled_from([*FULL, "x"]), junk, max_size=2))
def test_any_values_are_a_setting_or_a_config_error(good: set[str], other: dict[str, Any]) -> None:
    """A mix of allowed values, none, and anything else."""
    try:
        made = build(Outer, {**{name: FULL[name] for name in good}, **other})
    except ConfigError:
        return
    check(made)
    assert build(Outer, dump(made)) == made


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("fedav", ["fedavg", "fedper"], "did you mean 'fedavg'?"),
        ("FedBN", ["fedavg", "fedbn"], "did you mean 'fedbn'?"),
        ("APPLE", ["apfl", "apple"], "did you mean 'apple'?"),
        ("FedAvg+FT", ["fedavg", "fedavg-ft"], "did you mean 'fedavg-ft'?"),
        ("FEDPROXX", ["fedavg", "fedprox"], "did you mean 'fedprox'?"),
        ("local", ["floco", "standalone"], "did you mean 'standalone'?"),
        ("Local", ["floco", "standalone"], "did you mean 'standalone'?"),
        ("+", ["b", "a"], "allowed are a, b."),
        ("zzz", ["b", "a"], "allowed are a, b."),
        ("zzz", [], "there are none."),
        ("zzz", ["column 10", "column 2", "column 1"], "allowed are column 1, column 2, column 10."),
    ],
)
def test_nearest(word: str, known: list[str], hint: str) -> None:
    assert nearest(word, known) == hint


def test_one_of_several_numbers_must_be_a_whole_one() -> None:
    """Python thinks that 1.0 is in (1, 2)."""
    with pytest.raises(ConfigError, match=r"variant is 1\.0"):
        convert(1.0, Literal[1, 2], "variant")


def test_a_hint_names_each_choice_once() -> None:
    assert nearest("zzz", ["split", "task", "split"]) == "allowed are split, task."
