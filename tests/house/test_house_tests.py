"""The tests themselves: none depends on chance, or on how fast the machine is."""

from __future__ import annotations

import ast
import os
import random
import re
import runpy
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from rooms import ROOT
from xdist.scheduler import worksteal

from waiting import slow_first

TESTS = sorted(p for p in Path(__file__).parents[1].rglob("*.py"))
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}


def name_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parents[1]).as_posix()


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_two_files_have_one_name() -> None:
    """Pytest can't import both in one run."""
    names = Counter(path.name for path in TESTS if path.name != "conftest.py")
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_reads_a_clock(path: Path) -> None:
    """But for `until`, which gives up what never comes."""
    read = [f"{name}, line {node.lineno}" for name, node in calls(path) if name.removeprefix("time.") in CLOCKS]
    assert read == [] or name_of(path) == "waiting.py"
    asked = re.findall(r"performance\.\w+\(|Date\.now", path.read_text(encoding="utf-8"))  # in a browser
    assert asked == [] or path == Path(__file__)


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_gives_up_on_a_slow_machine(path: Path) -> None:
    """Whatever is waited for has the same time, which is much too long."""
    given = [(k, node.lineno) for _, node in calls(path) for k in node.keywords if k.arg == "timeout"]
    assert [line for k, line in given if ast.unparse(k.value) != "PATIENCE"] == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_generator_has_a_seed(path: Path) -> None:
    bare = {"np.random.default_rng", "random.Random", "numpy.random.default_rng", "default_rng", "Random"}
    assert [node.lineno for name, node in calls(path) if name in bare and not node.args] == []


def test_the_reader_of_calls_reads_them() -> None:
    """Or all of the above would pass on nothing."""
    found = [name for name, _ in calls(Path(__file__).parents[1] / "waiting.py")]
    assert {"time.monotonic", "time.sleep"} <= set(found)
    assert len(TESTS) > 100


def test_what_is_drawn_is_the_same_in_every_run() -> None:
    drawn = [random.random(), np.random.random(), torch.rand(()).item()]
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert drawn == [random.random(), np.random.random(), torch.rand(()).item()]


def test_generated_examples_do_not_depend_on_chance_or_speed() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
    assert settings().derandomize


class Node:
    """A worker, as xdist's scheduler knows it."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("slow", [0, 1, 3, 8])
def test_every_worker_begins_with_its_share_of_the_slow_tests(
    slow: int, workers: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = slow_first([f"slow {k}" for k in range(slow)], [f"quick {k}" for k in range(50)], workers)
    assert len(order) == len(set(order)) == slow + 50
    nodes = [Node() for _ in range(workers)]
    monkeypatch.setattr(worksteal, "parse_tx_spec_config", lambda config: nodes)
    scheduler = worksteal.WorkStealingScheduling(request.config)
    for node in nodes:
        scheduler.add_node(node)  # type: ignore[arg-type]
        scheduler.add_node_collection(node, order)  # type: ignore[arg-type]
    scheduler.schedule()
    firsts = [[order[i].startswith("slow") for i in node.sent] for node in nodes]
    assert all(first == sorted(first, reverse=True) for first in firsts)
    assert max(map(sum, firsts)) - min(map(sum, firsts)) <= 1


def test_ci_says_first_where_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads a red run elsewhere needs to know."""
    steps = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert steps == ["make about", "make lint type", "make test"]
    runpy.run_path(str(ROOT / "scripts" / "about.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert torch.backends.cpu.get_cpu_capability() in said
    assert all(f"{name} {version(name)}" in said for name in ("torch", "numpy", "flwr"))
    assert f"{os.cpu_count()} cores" in said
