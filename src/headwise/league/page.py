"""The league as one self-contained page with filters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .. import __version__
from ..report.page import read_asset, script_safe, templates_in
from ..report.recommendation import LOCAL
from .cells import LeagueCell, Result
from .standings import RIVALS, Standings, federation_table, standings_of
from .table import Group

HOME = Path(__file__).parent


def render(
    results: Sequence[Result], missing: Sequence[LeagueCell] = (), left_out: dict[str, str] | None = None
) -> str:
    """The standings, a table per federation, what is missing and the commands that run it."""
    standings = standings_of(results)
    return (
        templates_in(HOME)
        .get_template("page.html.j2")
        .render(
            words=standings.words(),
            overview=standings.overview(),
            families=standings.by_family(),
            groups=[(group, *federation_table(group)) for group in standings.groups],
            names=sorted({*standings.families.values()}),
            data=script_safe(page_data(standings)),
            missing=[cell.command for cell in missing],
            left_out=left_out or {},
            css=Markup(read_asset("report.css")),
            version=__version__,
        )
    )


def page_data(standings: Standings) -> dict[str, Any]:
    """What the filters recompute mean ranks, wins and losses from."""
    return {
        "federations": [group.name for group in standings.groups],
        "rivals": [*RIVALS],
        "methods": [
            {
                "name": s.name,
                "family": s.family,
                "ranks": standings.ranks[s.name],
                "regrets": [_known(group, s.name) for group in standings.groups],
                "near": [s.name in group.near for group in standings.groups],
                "results": {rival: [_result(group, s.name, rival) for group in standings.groups] for rival in RIVALS},
            }
            for s in standings.table
        ],
        "local": LOCAL,
    }


def _known(group: Group, name: str) -> float | None:
    return group.regret(name) if name in group.scored else None


def _result(group: Group, name: str, rival: str) -> int:
    """1 for a win, -1 for a loss, 0 if the interval contains zero."""
    lead = group.lead(name, rival)
    return 0 if lead is None else (lead.low > 0) - (lead.high < 0)
