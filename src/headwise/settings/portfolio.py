"""What our league says about methods: the order in which `choose` tries them, and a line for each. Needs no torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ..errors import pluralize
from .experiment import read_toml
from .names import list_names

PORTFOLIO = Path(__file__).with_name("portfolio.toml")
"""written by benchmarks/league.py"""


def read_portfolio() -> list[str]:
    """What to try, the most promising first; then all other methods."""
    return [*dict.fromkeys([*_read()["methods"], *list_names("method")])]


def mean_rank(method: str) -> float | None:
    """None if the method is not in the league."""
    return _read()["standings"].get(method, {}).get("mean_rank")


def describe_standing(method: str) -> str:
    """One line about the method in the league; empty if it is not in it."""
    content = _read()
    own = content["standings"].get(method)
    if own is None:
        return ""
    over = pluralize(content["federations"], "federation")
    of = f"mean rank {own['mean_rank']:g} of {len(content['standings'])} over {over}"
    return f"{of}; ahead of local training in {own['ahead']}, behind in {own['behind']}"


@cache
def _read() -> dict[str, Any]:
    return read_toml(PORTFOLIO)
