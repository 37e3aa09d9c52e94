"""A linear network has no body: what a method that shares bodies does there is written down, never silent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

import headwise as hw
from headwise.app import registry
from headwise.app.prepare import prepare
from headwise.cli import cli
from headwise.errors import ConfigError
from headwise.settings.names import list_names

DATA = "synthetic:60:3:4:sites=3"
FAILING = [name for name in list_names("method") if registry.find("method", name).without_body == "fails"]


def experiment(method: str) -> hw.Experiment:
    return hw.Experiment(method=method, data=DATA, partition="natural", model="linear", rounds=2)


@pytest.mark.parametrize("method", FAILING)
def test_a_method_that_needs_a_body_refuses_it(method: str, tmp_path: Path) -> None:
    sentence = f"model is 'linear', whose body has no parameters, but {method} trains the body: choose another model"
    with pytest.raises(ConfigError, match=sentence):
        hw.run(experiment(method), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_exactly_those_methods_warn_whose_clients_get_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Judged by the bytes of a round, not by what a card says."""
    silent = list[str]()
    for method in list_names("method"):
        if method in FAILING:
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING, "headwise"):
            run = hw.run(experiment(method), tmp_path / method)
        warned = f"{method} shares nothing else: every client trains alone." in caplog.text
        assert warned == (method != "standalone" and not run.summary()["bytes_down"])
        silent += [method] if warned else []
    assert "fedper" in silent
    assert "fedavg" not in silent


def test_a_comparison_goes_on_and_tells(tmp_path: Path) -> None:
    comparison = hw.compare(experiment("fedavg"), ["fedavg", "fedper"], draws=1, out=tmp_path / "out")
    assert "Clients of fedper received nothing: they trained alone." in comparison.words()


def test_a_network_with_a_body_is_no_matter(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    prepare(hw.Experiment(method="fedper", data=DATA, partition="natural", model="mlp:4"), tmp_path)
    assert "shares nothing" not in caplog.text


def test_a_comparison_warns_once_of_each_method(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = ["compare", "fedrep", "fedper", "--model", "linear", "--rounds", "1", "--clients", "4", "--draws", "2"]
    result = CliRunner().invoke(cli, [*arguments, "--set", "fraction=0.1", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert [r.getMessage().split()[9] for r in caplog.records] == ["fedrep", "fedper"]
    assert not logging.getLogger("headwise").filters
