"""From a league to the order in which `headwise choose` tries methods."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..report.recommendation import YARDSTICKS
from .standings import Standings
from .table import Group


def order_portfolio(standings: Standings) -> list[str]:
    """All methods but the yardsticks, which are always tried: first one of each family, then the others.

    Each is the one that brings the best of those tried so far nearest to the best of every federation; where none
    does, the one with the smallest regret.
    """
    groups = standings.groups
    left = [name for name in standings.entries if name not in YARDSTICKS and "," not in name]
    behind = [min((_regret(g, name) for name in YARDSTICKS), default=1.0) for g in groups]
    families = {standings.families[name] for name in YARDSTICKS if name in standings.families}
    order: list[str] = []
    while left:
        new = [name for name in left if standings.families[name] not in families] or left
        best = min(new, key=lambda name: (_after(groups, behind, name), _mean_regret(groups, name), name))
        behind = [min(b, _regret(g, best)) for b, g in zip(behind, groups, strict=True)]
        families.add(standings.families[best])
        left.remove(best)
        order.append(best)
    return order


def _after(groups: Sequence[Group], behind: Sequence[float], name: str) -> float:
    """The regret that is left if this one is tried, too."""
    return round(sum(min(b, _regret(g, name)) for b, g in zip(behind, groups, strict=True)), 4)


def _mean_regret(groups: Sequence[Group], name: str) -> float:
    return fmean(_regret(group, name) for group in groups)


def _regret(group: Group, name: str) -> float:
    """How far it is behind the best; as far as possible if it has no score here."""
    return group.regret(name) if name in group.scored else 1.0
