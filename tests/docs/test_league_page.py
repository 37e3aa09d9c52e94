"""The league's page and the portfolio are what its CSV says; the order of the portfolio, on made-up results."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from headwise.disk.files import read_json
from headwise.league.cells import LeagueCell, Result, find_federations, read_csv, to_csv
from headwise.league.play import play
from headwise.league.standings import standings_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def league() -> Any:
    spec = importlib.util.spec_from_file_location("league", ROOT / "benchmarks" / "league.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_those_of_the_csv(league: Any) -> None:
    results = read_csv(league.CSV)
    text = league.PAGE.read_text(encoding="utf-8")
    assert league.tables(league.rank_defaults(results), results) in text


def test_the_page_that_recommends_says_what_the_csv_says(league: Any) -> None:
    standings = league.rank_defaults(read_csv(league.CSV))
    groups = {group.name: group for group in standings.groups}
    page = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")

    def leads(name: str, *federations: str) -> list[float]:
        found = [groups[each].lead(name, "standalone") for each in federations or groups]
        return sorted(100 * lead.value for lead in found if lead)

    def ratios(*names: str) -> list[float]:
        cells = [(g.mean(n, "cpu_seconds"), g.mean("fedavg", "cpu_seconds")) for g in groups.values() for n in names]
        return sorted(one / other for one, other in cells if one and other)

    ranks = dict(zip(groups, standings.ranks["standalone"], strict=True))
    assert (ranks["strangers"], ranks["feature-shift"]) == (1, 9)
    alone = [groups[name].lead(other, "standalone") for name in ("strangers", "feature-shift", "hospitals")
             for other in groups[name].scored if other != "standalone"]  # fmt: skip
    assert "is any method clearly ahead of it" in page and all(lead and lead.low <= 0 for lead in alone)
    alike = leads("fedavg", "few-samples", "quantity-skew")
    many = leads("fedavg", "many-clients", "partial-participation")
    assert f"it is {alike[0]:.0f} and {alike[1]:.0f} points behind one global model" in page
    assert f"and {many[0]:.0f} and {many[1]:.0f} where they are many" in page
    small = [
        x
        for name in ("fedgh", "lg-fedavg")
        for x in leads(name, "many-clients", "partial-participation", "quantity-skew")
    ]
    assert (
        f"FedGH and LG-FedAvg are {min(small):.0f} to {max(small):.0f} points ahead of local training in *many" in page
    )
    assert "FD and FedProto are nowhere more than 2 points ahead" in page and max(leads("fd") + leads("fedproto")) < 2
    behind = [lead for g in groups.values() if (lead := g.lead("fedgmh", "standalone")) and lead.value < 0]
    clearly = [-100 * lead.value for lead in behind if lead.high < 0]
    assert (len(behind), len(clearly)) == (9, 7)
    assert f"nine of ten federations, clearly (by {min(clearly):.0f} to {max(clearly):.0f} points) in seven" in page
    cheap, slow = ratios("fedper", "fedbabu"), ratios("fedcp", "fedpac")
    assert f"Same passes as FedAvg and {cheap[0]:.1f} to {cheap[-1]:.1f} times its CPU seconds" in page
    assert f"FedCP and FedPAC take {slow[0]:.1f} to {slow[-1]:.0f} times as long" in page
    best = standings.table[:4]
    assert {s.name for s in best} == {"fedah", "feddbe", "ditto", "cd2-pfed"} and best[3].name == "ditto"
    assert (
        f"four best mean ranks ({best[0].mean_rank:.0f} to {best[3].mean_rank:.0f}) of {len(standings.table)}" in page
    )
    least = min(standings.table, key=lambda s: s.regret)
    assert least.name == "cd2-pfed" and f"CD²-pFed loses least on average, {100 * least.regret:.1f} points" in page
    pairs = [g.cells.difference(a.name, b.name) for g in groups.values() for a, b in combinations(best, 2)]
    undecided = sum(not pair.excludes_zero for pair in pairs)
    assert f"of the {len(pairs)} intervals between two of these four, {undecided} contain zero" in page


def test_the_portfolio_is_that_of_the_csv(league: Any) -> None:
    assert league.PORTFOLIO.read_text(encoding="utf-8") == league.portfolio(league.rank_defaults(read_csv(league.CSV)))


def test_a_published_league_continues_in_a_folder(league: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are found there; what the folder has stays, and cells of other code are left out."""
    published = [r for r in read_csv(league.CSV) if (r.federation, r.method) == ("strangers", "fedavg")]
    before, other_code, *_ = (r for r in published if r.setting == "default")
    rows = [replace(r, numerics=r.numerics - (r is other_code)) for r in published]
    monkeypatch.setattr(league, "CSV", tmp_path / "league.csv")
    league.CSV.write_text(to_csv(rows), encoding="utf-8")
    mine = replace(before, mean_client=0.5)
    strangers = find_federations("v1", ["strangers"])
    path = LeagueCell(strangers[0], "fedavg", before.draw).path(tmp_path / "out")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(mine.to_plain()), encoding="utf-8")

    league.unpack(tmp_path / "out")
    found = play(strangers, tmp_path / "out", tmp_path, methods=["fedavg"], settings=["default", "tuned"], run=False)
    known = {(r.setting, r.draw): r for r in found.results}
    assert known.keys() == {(r.setting, r.draw) for r in published if r is not other_code}
    assert known["default", before.draw].mean_client == 0.5
    assert read_json(tmp_path / "out" / "tuned" / "strangers" / "fedavg.json") == known["tuned", 0].settings


SCORES = {
    "standalone": ("no sharing", 0.5, 0.9),
    "fedavg": ("one global model", 0.8, 0.2),
    "fedavg-ft": ("one global model", 0.7, 0.5),
    "good-here": ("body", 0.9, 0.2),
    "good-there": ("body", 0.3, 0.95),
    "middling": ("head", 0.7, 0.7),
    "useless": ("clusters", 0.1, 0.1),
}


def results() -> list[Result]:
    return [
        Result(f"fed{k}", "", name, family, "default", draw, "accuracy", "up", score, score, clients=2,
               scores=[score] * 2)
        for name, (family, *means) in SCORES.items() for k, score in enumerate(means) for draw in (0, 1)
    ]  # fmt: skip


def test_tuned_ranks_are_compared_with_those_by_default_on_the_same_draws(league: Any) -> None:
    """fed1 has a tuned method only, and its default results must not count."""
    tuned = [replace(r, setting="tuned") for r in results() if r.federation == "fed0" and r.draw == 0]
    last = next(r for r in tuned if r.method == "useless")
    better = [r for r in tuned if r is not last] + [replace(last, mean_client=0.85, scores=[0.85] * 2)]
    heading, words, table = league.tuned_overview([*results(), *better, replace(last, federation="fed1")])
    assert heading == "## All federations, tuned"
    assert words.splitlines()[0] == f"- {len(SCORES)} methods on 1 federation, 1 draw each."
    assert "- Left out, since few methods were run there so far: fed1." in words.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    ranks = {row[0]: (row[2], row[3]) for row in rows}
    assert ranks["method"] == ("mean rank", "mean rank by default")
    assert (ranks["useless"], ranks["good-here"], ranks["fedavg"]) == (("2.0", "7.0"), ("1.0", "1.0"), ("3.0", "2.0"))


def test_nothing_is_said_of_tuning_where_methods_are_missing(league: Any) -> None:
    some = [replace(r, setting="tuned") for r in results() if r.method != "fedavg"]
    assert league.tuned_overview([*results(), *some]) == []


def test_one_of_each_family_first_and_what_brings_most_before_others(league: Any) -> None:
    assert league.order_portfolio(standings_of(results())) == ["good-here", "middling", "useless", "good-there"]


def test_what_has_no_score_somewhere_comes_late(league: Any) -> None:
    rows = [r for r in results() if (r.method, r.federation) != ("good-here", "fed0")]
    failed = Result("fed0", "", "good-here", "body", "default", 0, error="it diverged.")
    assert league.order_portfolio(standings_of([*rows, failed]))[-1] == "good-here"


def test_of_a_revised_method_the_newest_results_count(league: Any, tmp_path: Path) -> None:
    home = tmp_path / "cells" / "fed0"
    home.mkdir(parents=True)
    made = [(result, 1) for result in results() if result.federation == "fed0"]
    made += [(result, 2) for result, _ in made if result.method == "fedavg"]
    for result, numerics in made:
        name = f"{result.method}-{9 - numerics}-{result.draw}.json"  # the newer one comes first in the folder
        (home / name).write_text(json.dumps({**result.to_plain(), "numerics": numerics}))
    newest = league.newest_results(tmp_path)
    assert len(newest) == 2 * len(SCORES)
    assert {r.method for r in newest if r.numerics == 2} == {"fedavg"}
