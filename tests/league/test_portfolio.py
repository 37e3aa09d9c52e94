"""The order in which methods are tried, and what is said of them, from a league."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.league.cells import Result
from headwise.league.portfolio import order_portfolio
from headwise.league.standings import standings_of
from headwise.settings import portfolio

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


def test_one_of_each_family_first_and_what_brings_most_before_others() -> None:
    assert order_portfolio(standings_of(results())) == ["good-here", "middling", "useless", "good-there"]


def test_what_has_no_score_somewhere_comes_late() -> None:
    rows = [r for r in results() if (r.method, r.federation) != ("good-here", "fed0")]
    failed = Result("fed0", "", "good-here", "body", "default", 0, error="it diverged.")
    assert order_portfolio(standings_of([*rows, failed]))[-1] == "good-here"


def test_a_line_about_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "portfolio.toml"
    path.write_text(
        'federations = 2\nmethods = ["fedah"]\n[standings]\nfedah = { mean_rank = 3.5, ahead = 2, behind = 0 }'
    )
    monkeypatch.setattr(portfolio, "PORTFOLIO", path)
    portfolio._read.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        line = "mean rank 3.5 of 1 over 2 federations; ahead of local training in 2, behind in 0"
        assert portfolio.describe_standing("fedah") == line
        assert portfolio.describe_standing("mine.py") == ""
        assert portfolio.mean_rank("fedah") == 3.5
        assert portfolio.read_portfolio()[0] == "fedah"
    finally:
        portfolio._read.cache_clear()  # pyright: ignore[reportPrivateUsage]
