"""Times and rounds to convergence: multiples of FedAvg's, in print and here."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

import headwise as hw
from headwise.errors import ConfigError
from headwise.papers.cells import ask_for, cells_of
from headwise.papers.reproduce import measure_effort, reproduce, rows_of
from headwise.papers.results import judge_ratio
from headwise.papers.tables import Printed, find

TINY = (Path(__file__).parent / "tiny.toml").read_text(encoding="utf-8")
TIMES = """
[[tables]]
name = "times"
title = "Minutes"
rows = [["FedAvg", "50", "2.00", "25"], ["FedProx", "90", "3.00", "30"]]
columns = [
  { name = "in all", measure = "duration" },
  { name = "per round", measure = "pace" },
  { name = "rounds", measure = "convergence" },
]
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "times.toml").write_text(TINY + TIMES, encoding="utf-8")
    return f"{tmp_path}/times.toml/times"


def test_print_and_runs_are_divided_by_fedavgs(table: str, tmp_path: Path) -> None:
    ask = ask_for(table, methods=["FedProx"], seeds=2)
    assert {c.method for c in cells_of(ask)} == {"FedAvg", "FedProx"}
    rows = {r.column: r for r in reproduce(ask, tmp_path / "out", cells=tmp_path / "cells").rows}
    assert {c: r.printed.mean for c, r in rows.items()} == {"in all": 1.8, "per round": 1.5, "rounds": 1.2}
    assert rows["per round"].printed.text == "1.50 x FedAvg (3.00)"

    def pace(method: str, seed: int) -> float:
        (run,) = (hw.Run(p) for p in (tmp_path / "cells").glob(f"{method}-synthetic-s{seed}-*"))
        spent = [row["seconds"] for row in run.rounds if row["round"]]
        idle = ("evaluation", "idle")
        return median(s["server"] + sum(v for k, v in s["workers"].items() if k not in idle) for s in spent)

    ours = [pace("fedprox", seed) / pace("fedavg", seed) for seed in (0, 1)]
    assert rows["per round"].ours == pytest.approx(ours)
    assert rows["in all"].ours == pytest.approx([a * b for a, b in zip(ours, rows["rounds"].ours, strict=True)])
    alone = rows_of(ask_for(table, columns=["per round"], methods=["FedAvg"], seeds=2), tmp_path / "cells", {})
    assert alone[0].ours == (1.0, 1.0)
    more = rows_of(ask_for(table, columns=["per round"], methods=["FedProx"], seeds=3), tmp_path / "cells", {})
    assert more[0].verdict == "not run yet"


@pytest.mark.parametrize(
    ("curve", "converged"),
    [([0.1, 0.5, 0.9, 0.895], 3), ([0.1, 0.895, 0.9, 0.9], 2), ([0.1, 0.2, 0.3, 0.4], None)],
)
def test_a_run_has_converged_within_a_point_of_its_best(
    curve: list[float], converged: int | None, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"round": t, "pre": {"accuracy": v}, "seconds": {"round": 9.0, "server": 1.0, "workers": {"idle": 5.0, "x": t}}}
        for t, v in enumerate(curve, 1)
    ]
    monkeypatch.setattr(hw.Run, "rounds", rows)
    ask = ask_for(table)
    run = hw.Run(Path("nowhere"))
    all_in_all, per_round, rounds = (measure_effort(run, ask, c, "pre") for c in ask.columns)
    assert (per_round, rounds) == (3.5, converged)
    assert all_in_all == (None if converged is None else 3.5 * converged)


def test_a_table_of_ratios_needs_fedavg(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(TINY + TIMES.replace('["FedAvg", "50", "2.00", "25"], ', ""), encoding="utf-8")
    with pytest.raises(ConfigError, match="table times: in all, per round, rounds does not fit the other entries"):
        find(f"{tmp_path}/own.toml/times")


@pytest.mark.parametrize(
    ("printed", "ours", "verdict"),
    [(1.5, 1.6, "within a tenth of print"), (1.5, 3.0, "100% above print"), (2.0, 1.0, "50% below print")],
)
def test_verdicts_on_ratios(printed: float, ours: float, verdict: str) -> None:
    assert judge_ratio(Printed("-", printed), ours) == verdict
    assert judge_ratio(Printed("-"), ours) == "nothing printed to compare with"
