"""Executors by name: ours, and another package's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.app import registry
from headwise.cli import main
from headwise.engine.executors import local, pool
from headwise.settings.names import ENGINES, plugins
from same_runs import rows

PACKAGE = """
from headwise.engine.executors.base import Setup
from headwise.engine.executors.local import Serial

MADE = []

class Backwards(Serial):
    def run(self, jobs):
        return super().run(list(jobs)[::-1])

def make(setup: Setup):
    MADE.append((setup.workers, setup.folder.name))
    return Backwards(setup.plan, setup.states)
"""


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with executors of these names."""
    (tmp_path / "backwards_of_tests.py").write_text(PACKAGE)
    about = tmp_path / "backwards_of_tests-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: backwards-of-tests\nVersion: 1.0\n")
    points = {"backwards": "backwards_of_tests:make", "broken": "backwards_of_tests:nothing", "serial": "nowhere:make"}
    lines = [f"{name} = {where}" for name, where in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[headwise.executors]", *lines, ""]))
    monkeypatch.syspath_prepend(tmp_path)
    plugins.cache_clear()
    yield
    plugins.cache_clear()


def experiment(**engine: Any) -> hw.Experiment:
    return hw.Experiment(data="synthetic:80:4:8", model="mlp:8", clients=4, rounds=2, engine=engine)


def lines(run: hw.Run) -> list[Any]:
    return [*rows(run), *run.clients]


@pytest.mark.usefixtures("offered")
def test_another_packages_executor_gives_the_same_bits(tmp_path: Path) -> None:
    theirs = hw.run(experiment(kind="backwards", workers=3), tmp_path / "theirs")
    assert lines(theirs) == lines(hw.run(experiment(workers=1), tmp_path / "ours"))  # the name serial stays ours
    import backwards_of_tests  # pyright: ignore[reportMissingImports]

    assert backwards_of_tests.MADE == [(3, "theirs")]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("backward", "engine.kind is 'backward': did you mean 'backwards'?"),
        ("pool", f"engine.kind is 'pool': allowed are {', '.join(sorted(['backwards', 'broken', *ENGINES]))}."),
        ("broken", "engine.kind is 'broken', which can't be imported: AttributeError: module 'backwards_of_tests' "
         "has no attribute 'nothing'."),
    ],
)  # fmt: skip
def test_a_wrong_name_is_one_sentence(kind: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--data", "synthetic:80:4:8", "--engine", kind, "--out", str(tmp_path / "run")])
    assert capsys.readouterr().err == f"headwise: {said}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("offered")
def test_masked_sums_need_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--engine", "backwards", "--set", "secure.sums=true", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--data", "synthetic:80:4:8", *asked])
    assert "engine.kind is 'backwards', which has no sites" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "make"), [("serial", local.make_serial), ("pool", pool.make), ("threads", local.make_threads)]
)
def test_ours_are_found_by_name(name: str, make: object) -> None:
    assert registry.find_executor(name) is make
