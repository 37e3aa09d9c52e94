"""The league's page and the portfolio are what its CSV says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from headwise.league.standings import standings_of
from headwise.league.table import read_csv

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
    assert league.tables(standings_of(results), results) in text


def test_the_portfolio_is_that_of_the_csv(league: Any) -> None:
    assert league.PORTFOLIO.read_text(encoding="utf-8") == league.portfolio(standings_of(read_csv(league.CSV)))
