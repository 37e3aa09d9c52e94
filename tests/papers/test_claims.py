"""The pages that settle claims: their figures are the runs', and the committed pages are what the script writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("claims", ROOT / "benchmarks" / "claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


claims = script()
PAGES = claims.choose_pages(claims.read_runs())


@pytest.mark.parametrize(("moments", "every"), [(("pre", "post"), 2), (("post",), 2), (("post",), 1)])
def test_a_trace_gives_the_accuracies_that_the_engine_logged(
    tmp_path: Path, moments: tuple[str, ...], every: int
) -> None:
    experiment = hw.Experiment(
        method="fedper", data="digits", partition="dirichlet:0.5", model="linear", clients=6, rounds=4,
        sampling={"ratio": 0.5}, evaluate={"every": every, "moments": moments},
    )  # fmt: skip
    run = hw.run(experiment, tmp_path / "run")
    n = [sum(row) for row in run.partition["test"]]
    logged = {row["round"]: row for row in run.rounds}
    for moment in {*moments, "stale"} - {"post"}:
        points = claims.trace(run, 6)[moment]
        assert [t for t, _ in points] == list(range(every, 5, every))
        for t, scores in points:
            assert np.average(scores, weights=n) == pytest.approx(logged[t][moment]["accuracy"])


def test_an_interval_covers_draws_seeds_and_clients() -> None:
    one = claims.estimate(np.array([[[1.0, 2.0]]]), np.array([[1.0, 3.0]]))
    assert one.value == 1.75
    assert one.low < 1.75 < one.high  # over two clients
    assert claims.estimate(np.full((1, 1, 50), 0.5), np.ones((1, 50))) == (0.5, 0.5, 0.5)
    seeds = np.array([[[0.0] * 50, [2.0] * 50]])
    assert claims.estimate(seeds, np.ones((1, 50))).low < 0.0
    draws = np.array([[[0.0] * 50], [[2.0] * 50]])
    assert claims.estimate(draws, np.ones((2, 50))).low < 0.0


TWO: dict[str, Any] = {
    "title": "-", "batch": 5, "pairs": [], "effects": {"both ways": ["FedPer - FedAvg", "FedAvg - FedPer"]},
    "lines": [{"name": n, "match": {"method.name": n.lower()}} for n in ("FedPer", "FedAvg")],
}  # fmt: skip


def run_of(method: str, scores: list[float], seed: int = 0, partition: str = "p") -> dict[str, Any]:
    return {
        "run": method, "experiment": {"method": {"name": method}, "seed": seed}, "partition": partition,
        "train": [3, 9], "test": [2, 6], "floor": {"weighted": 0.5, "mean": 0.5}, "curves": {},
        "clients": {"pre": scores},
    }  # fmt: skip


def test_methods_are_compared_on_the_seeds_that_both_have() -> None:
    runs = [run_of("fedper", [0.5, 0.5], s) for s in (0, 2)] + [run_of("fedavg", [0.1 * s] * 2, s) for s in (0, 1, 2)]
    page = claims.Page(TWO, runs)
    assert page._difference("FedPer - FedAvg")[0] == pytest.approx(40.0)  # 50 - 0 and 50 - 20, without seed 1
    assert page.fill("{seeds:}; {effect:both ways}") == "Two to three seeds; +0.0 (+0.0 to +0.0)"
    assert claims.Page(TWO, runs[:1]).fill("{seeds:}") == "One seed"


def test_a_draw_counts_when_all_lines_have_it() -> None:
    runs = [run_of("fedper", [0.5, 0.5]), run_of("fedavg", [0.1, 0.1]), run_of("fedper", [0.9, 0.9], partition="q")]
    runs[2]["experiment"]["data_seed"] = 1
    assert claims.Page(TWO, runs).fill("{acc:FedPer}, {diff:FedPer - FedAvg}") == "50.0, +40.0 (+40.0 to +40.0)"
    whole = [*runs, {**run_of("fedavg", [0.3, 0.3], partition="q")}]
    whole[3]["experiment"]["data_seed"] = 1
    assert claims.Page(TWO, whole).fill("{acc:FedPer}") == "70.0"


def test_other_clients_are_not_compared() -> None:
    seeds = claims.Page(TWO, [run_of("fedper", [0.5, 0.5], s, f"p{s}") for s in (0, 1)])
    with pytest.raises(SystemExit, match="FedPer: these runs have different clients in one draw"):
        seeds.table()
    page = claims.Page(TWO, [run_of("fedper", [0.5, 0.5]), run_of("fedavg", [0.5, 0.5], partition="q")])
    with pytest.raises(SystemExit, match="FedPer, FedAvg: these runs have different clients in one draw"):
        page._difference("FedPer - FedAvg")


def test_small_and_large_clients_add_up_to_the_difference() -> None:
    page = claims.Page(TWO, [run_of("fedper", [0.9, 0.8]), run_of("fedavg", [0.1, 0.7])])
    whole, small, large = (page._difference(f"FedPer - FedAvg{g}")[0] for g in ("", " @ small", " @ large"))
    assert (whole, small, large) == pytest.approx((27.5, 20.0, 7.5))
    assert page.fill("by {diff:FedPer - FedAvg}").startswith("by +27.5 (")


@pytest.mark.parametrize("page", [p for p in PAGES if "exact" not in p.claim], ids=lambda p: p.claim["name"])
def test_a_committed_page_is_what_its_runs_say(page: Any) -> None:
    assert (claims.RESULTS / f"claim-{page.claim['name']}.md").read_text() == page.markdown()
    assert not {"?", ""} & {page.verdict, page.claim["because"]}


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (["FedPer - FedAvg"], "holds (one draw, small)"),
        (["FedAvg - FedPer"], "not seen here (one draw, small)"),
        (["FedPer - FedAvg", "FedAvg - FedPer"], "holds if compared with FedAvg only (one draw, small)"),
    ],
)
def test_differences_decide(pairs: list[str], verdict: str) -> None:
    runs = [run_of("fedper", [0.9, 0.8]), run_of("fedavg", [0.1, 0.1])]
    assert claims.Page({**TWO, "decides": pairs, "scope": ", small"}, runs).verdict == verdict


def test_a_verdict_names_its_condition_and_leaves_out_pairs_without_runs() -> None:
    runs = [run_of("fedper", [0.9, 0.8]), run_of("fedavg", [0.1, 0.1])]
    claim = {**TWO, "decides": ["FedPer - FedAvg", "FedPer - FedRep"], "given": "it rains"}
    assert claims.Page(claim, runs).verdict == "holds if it rains (one draw)"


def test_a_group_of_clients_has_an_accuracy_of_its_own() -> None:
    page = claims.Page(TWO, [run_of("fedper", [0.9, 0.8])])
    assert page.fill("{within:FedPer@small}, {within:FedPer@large}, {acc:FedPer}") == "90.0, 80.0, 82.5"


def test_the_curves_of_a_cell_are_those_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HOME", tmp_path)
    (tmp_path / "cells").mkdir()
    rows = [f"{t},{moment},{t / 100:.6f},{t / 200:.6f}" for t in range(1, 41) for moment in ("pre", "stale")]
    (tmp_path / "cells" / "fedper.csv").write_text("\n".join(["round,moment,accuracy,client_mean", *rows]) + "\n")
    page = claims.Page(TWO, [run_of("fedper", [0.5, 0.5])])
    figures = "{reach:FedPer@30}, {reach_clients:FedPer@15}, {best:FedPer}, {late:FedPer}"
    assert page.fill(figures) == "30, 30, 40.0, 30.5"
    assert (
        claims.Page({**TWO, "metric": "client_mean"}, page.lines["FedPer"].runs).fill(figures)
        == "never, 30, 20.0, 15.2"
    )


def test_a_page_at_the_printed_scale_waits_for_its_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = '[[pages]]\nname = "a"\ntitle = "{}"\nlines = [{}]\n'
    one = '{ name = "X", match = { "method.name" = "fedper" } }'
    more = '{ name = "Y", match = { "method.name" = "fedavg" } }, { name = "Z", match = { seed = 9 }, optional = true }'
    (tmp_path / "few.toml").write_text(page.format("small", one))
    (tmp_path / "printed.toml").write_text(page.format("printed", f"{one}, {more}"))
    monkeypatch.setattr(claims, "HOME", tmp_path)
    runs = [run_of("fedper", [0.5, 0.5]), run_of("fedavg", [0.5, 0.5])]
    titles = [[p.claim["title"] for p in claims.choose_pages(some)] for some in (runs[:1], runs)]
    assert titles == [["small"], ["printed"]]


def test_the_table_of_claims_names_every_page() -> None:
    readme = (claims.RESULTS / "README.md").read_text()
    assert len(PAGES) >= 20
    assert all(f"(claim-{page.claim['name']}.md)" in readme for page in PAGES)
