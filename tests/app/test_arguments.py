"""Arguments of the functions that take an experiment, or data and settings: a wrong one gets one short sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_fit import PAIR

import headwise as hw
from headwise.errors import ConfigError

CLIENTS = {"va": PAIR, "rome": PAIR}


@pytest.mark.parametrize("base", [CLIENTS, hw.Experiment()], ids=["data", "experiment"])
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda base: hw.choose(base, buget="5s"), "buget is not a setting: did you mean 'budget'?"),
        (lambda base: hw.choose(base, onlysums=True), "onlysums is not a setting: did you mean 'only_sums'?"),
        (lambda base: hw.compare(base, ["fedavg"], drwas=3), "drwas is not a setting: did you mean 'draws'?"),
        (lambda base: hw.tune(base, dta_dir="."), "dta_dir is not a setting: did you mean 'data_dir'?"),
        (lambda base: hw.tune(base, class_weigth=1), "class_weigth is not a setting: did you mean 'class_weight'?"),
        (
            lambda base: hw.choose(base, xyz=1),
            "xyz is not a setting: see help(headwise.choose) and help(headwise.Experiment).",
        ),
        (
            lambda base: hw.tune(base, verbose=True),  # which is `quiet` in fit alone
            "verbose is not a setting: see help(headwise.tune) and help(headwise.Experiment).",
        ),
    ],
)
def test_a_wrong_keyword_gets_the_nearest_one(base: Any, call: Callable[[Any], Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        call(base)
    assert str(error.value) == sentence


def test_a_wrong_keyword_of_fit_gets_its_own_argument() -> None:
    with pytest.raises(ConfigError, match=r"^overwritee is not a setting: did you mean 'overwrite'\?$"):
        hw.fit(CLIENTS, overwritee=True)


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        (3, "methods is 3, but must be a list."),
        (["fedper", 3], "methods[1] is 3, but must be a string."),
        ("fedper,fedpr", "method is 'fedpr', which is not known: did you mean 'fedper'?"),
    ],
)
def test_wrong_methods_to_choose_from_get_a_sentence(methods: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        hw.choose(CLIENTS, methods=methods, out=tmp_path / "none")
    assert str(error.value) == sentence


def test_methods_are_a_list_or_a_text_and_the_answer_is_one_line(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"draws": 2, "trials": 0, "rounds": 1, "workers": 1}
    chosen = hw.choose(CLIENTS, methods="fedper, fedrep", out=tmp_path / "own", **settings)
    journal = json.loads((tmp_path / "own" / "choose.json").read_text())
    assert journal["about"]["methods"] == ["fedper", "fedrep"]
    assert repr(chosen).startswith(f"<Chosen {tmp_path / 'own'}: {chosen.method} on ")
    assert repr(chosen).endswith(", 2 clients>")
    assert len(repr(chosen)) < len(str(tmp_path)) * 2 + 100


def test_one_method_may_be_compared_by_its_name(tmp_path: Path) -> None:
    """Its letters were taken for methods."""
    comparison = hw.compare(CLIENTS, "fedavg", rounds=1, out=tmp_path / "one")
    assert [line.name for line in comparison.setting.lines] == ["fedavg"]
