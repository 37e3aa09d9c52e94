"""A method in a package of its own: installed, it is listed, runs, resumes and trains in a pool's workers."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.app import registry
from headwise.cli import cli
from headwise.engine.events import Event, RoundEnded
from headwise.errors import ConfigError
from headwise.settings.names import plugins

PACKAGE = Path(__file__).parents[2] / "examples" / "headwise-fedexp"
BROKEN = "[headwise.methods]\nbroken = nowhere_at_all:Broken\nfedavg = nowhere_at_all:FedAvg\n"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed it to, beside a package that can't be imported."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder), str(PACKAGE)], check=True)
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(BROKEN)
    return folder


@pytest.fixture(autouse=True)
def installed(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(target)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")]))
    plugins.cache_clear()
    yield
    plugins.cache_clear()


def experiment(**engine: Any) -> hw.Experiment:
    settings: dict[str, Any] = {"data": "synthetic:80:4:8", "model": "mlp:8", "clients": 4, "rounds": 3}
    return hw.Experiment(method="fedexp:epsilon=0.5", engine={"workers": 1, **engine}, **settings)


def rows(run: hw.Run) -> list[Any]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in run.rounds] + [*run.clients]


def test_it_is_listed_like_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", "methods"], standalone_mode=False)
    said = capsys.readouterr().out
    (line,) = [each for each in said.splitlines() if each.startswith("fedexp ")]
    assert "one global model" in line
    cli.main(["list", "methods", "--json"], standalone_mode=False)
    (row,) = [row for row in json.loads(capsys.readouterr().out)["methods"] if row["name"] == "fedexp"]
    assert "whole model" in row["travels"]
    assert "epsilon" in row["options"]


def test_a_package_that_cannot_be_imported_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", "methods"], standalone_mode=False)
    assert "of the package broken, which can't be imported: ModuleNotFoundError" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="method is 'broken' of the package broken, which can't be imported"):
        registry.make("method", hw.Experiment(method="broken").method)


def test_a_package_cannot_take_over_a_built_in_name() -> None:
    assert registry.find("method", "fedavg").__module__ == "headwise.methods.fedavg"


def test_it_runs_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment(), tmp_path / "cut", observers=[stop])
    whole = hw.run(experiment(), tmp_path / "whole")
    assert rows(hw.resume(tmp_path / "cut")) == rows(whole)


def test_two_rounds_of_it_are_computed_by_hand() -> None:
    tests = runpy.run_path(str(PACKAGE / "tests" / "test_fedexp.py"))
    for code in (False, True):
        tests["test_two_rounds_are_what_the_formulas_give"](code)


@pytest.mark.long
def test_it_keeps_the_contract_and_trains_in_workers(tmp_path: Path) -> None:
    runpy.run_path(str(PACKAGE / "tests" / "test_fedexp.py"))["test_contract"]()
    assert rows(hw.run(experiment(workers=2), tmp_path / "pool")) == rows(hw.run(experiment(), tmp_path / "one"))
