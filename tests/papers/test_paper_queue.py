"""The queue of printed-scale runs: what it lists, and what it keeps of a finished cell."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headwise as hw
from headwise.papers.cells import Cell
from headwise.settings.fields import difference

ROOT = Path(__file__).parents[2]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


claims = script("claims")
queue = script("paper_queue")
again = script("replay")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RUNS", "RESULTS", "ATTEMPTS"):
        monkeypatch.setattr(queue, name, tmp_path / getattr(queue, name).name)
    monkeypatch.setattr(queue, "QUEUE", tmp_path)
    return tmp_path


def test_every_cell_of_the_list_exists_comes_once_and_takes_all_samples() -> None:
    cells = list(queue.list_cells())
    assert len({cell.folder for _, cell, _ in cells}) == len(cells) > 50
    assert all(cell.method in entry and cell.experiment.fraction == 1 for entry, cell, _ in cells)
    assert all(0 < hours < 3 for _, _, hours in cells)


def test_no_cell_is_begun_that_would_not_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CLAIMS", home)
    monkeypatch.setattr(queue, "FAILED", home / "failed")
    experiment = hw.Experiment(data="digits", clients=3, rounds=2)
    cells = [Cell(f"{seed}", "digits", dataclasses.replace(experiment, seed=seed)) for seed in range(4)]
    hw.run(cells[0].experiment, queue.RUNS / cells[0].folder)
    queue.FAILED.mkdir()
    (queue.FAILED / cells[1].folder).touch()
    listed = [queue.Listed("-", cell, hours) for cell, hours in zip(cells, (0.1, 0.1, 2.0, 0.9), strict=True)]
    monkeypatch.setattr(queue, "list_cells", lambda: iter(listed))
    assert list(queue.open_cells()) == listed[2:]
    monkeypatch.setattr(queue, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setenv(queue.UNTIL, "4600")
    assert list(queue.open_cells()) == listed[3:]


def test_pages_take_each_cell_of_the_list_and_never_two_for_one() -> None:
    """Days of computing may be between a cell and its page: here each has a finished one's numbers."""
    finished = [run for run in claims.read_runs() if "cpu_seconds" in run]
    runs = []
    for _, cell, _ in queue.list_cells():
        plain = difference(cell.experiment.to_plain(), claims.DEFAULTS)
        like = next(r for r in finished if r["experiment"].get("clients") == cell.experiment.clients)
        clients = dict.fromkeys(("pre", "stale", "global"), like["clients"]["stale"])
        curves = dict.fromkeys(clients, like["curves"]["stale"])
        learned = {"mu": [0.5] * cell.experiment.clients}
        draw = str([plain.get(k) for k in ("data", "partition", "split", "data_seed")])
        experiment = {k: v for k, v in plain.items() if k != "engine"}
        runs.append({
            **like, "run": cell.folder, "experiment": experiment, "partition": draw, "clients": clients,
            "final": clients, "curves": curves, "learned": learned,
        })  # fmt: skip
    pages = [page for page in claims.choose_pages(runs) if page.lines]
    assert all(page.markdown() and page.fill(page.claim["ours"]) for page in pages)
    assert {r["run"] for page in pages for line in page.lines.values() for r in line.runs} == {r["run"] for r in runs}


def test_a_finished_cell_leaves_its_curves_and_its_cost(home: Path) -> None:
    experiment = hw.Experiment(
        method="fedper", data="digits", partition="dirichlet:0.5", model="linear", clients=4, rounds=2
    )
    run = hw.run(experiment, home / "runs" / "cell")
    attempts = [
        {"cell": "cell", "entry": "-", "cpu": 1.5, "machine": "a", "commit": "1"},
        {"cell": "other", "entry": "-", "cpu": 9.0, "machine": "a", "commit": "1"},
        {"cell": "cell", "entry": "-", "cpu": 2.0, "machine": "b", "commit": "1"},
    ]
    queue.ATTEMPTS.write_text("".join(json.dumps(a) + "\n" for a in attempts))
    queue.write_result(run.path)
    summary = json.loads((home / "results" / "cell.json").read_text())
    assert (summary["cpu_seconds"], summary["machine"], summary["commit"]) == (4, ["a", "b"], ["1"])
    with (home / "results" / "cell.csv").open() as file:
        rows = {(int(r["round"]), r["moment"]): r for r in csv.DictReader(file)}
    for row in run.rounds:
        for moment in ("pre", "stale"):
            if moment in row:
                assert float(rows[row["round"], moment]["accuracy"]) == pytest.approx(row[moment]["accuracy"], abs=1e-6)
    assert (2, "pre") in rows


def test_what_each_client_learned_is_collected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CLAIMS", home)
    experiment = hw.Experiment(
        method="fedafk", data="digits", partition="dirichlet:0.5", model="mlp:8", clients=3, rounds=4, fraction=0.2,
        evaluate={"every": 2},
    )  # fmt: skip
    run = hw.run(experiment, home / "runs" / "cell")
    (home / "results").mkdir()
    (home / "results" / "cell.json").write_text("{}")
    queue.collect()
    with (home / "cells" / "cell.learned.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["client"]) for row in rows] == [(t, c) for t in "24" for c in "012"]
    last = run.diagnostics[-1]["quantities"]["mu"]["values"]
    assert [float(row["value"]) for row in rows[3:]] == pytest.approx(last, abs=1e-6)
    monkeypatch.setattr(claims, "HOME", home)
    assert claims.read_learned({"run": "cell"}, "mu")[1][-1] == (4, pytest.approx(last[1], abs=1e-6))


def test_the_first_rounds_of_a_published_cell_are_run_again_and_compared(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "CLAIMS", home)
    experiment = hw.Experiment(
        method="fedper", data="digits", partition="dirichlet:0.5", model="linear", clients=4, rounds=3
    )
    cell = Cell("FedPer", "digits", experiment)
    curves = queue.curves_of(hw.run(experiment, home / "published"))
    assert {line.split(",")[0] for line in curves} == {"1", "2", "3"}
    (home / "cells").mkdir()
    published = home / "cells" / f"{cell.folder}.csv"
    published.write_text("\n".join(["round,moment,accuracy,client_mean", *curves]) + "\n")
    first = [line for line in curves if not line.startswith("3")]
    assert again.replay(cell, 2) == (len(first), len(first))
    published.write_text(published.read_text().replace(first[0], first[0][:-1] + str((int(first[0][-1]) + 1) % 10)))
    assert again.replay(cell, 2) == (len(first), len(first) - 1)


def test_a_replay_of_nothing_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert [again.main(arguments) for arguments in ([], ["0"], ["many"], ["3", "nosuch"])] == [2] * 4
    assert "No published cell's name begins with nosuch." in capsys.readouterr().err
