"""Settings of runs whose clients or data change: what a run goes on from, and labels that drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .fields import Natural, Range, Unit


@dataclass(frozen=True)
class Origin:
    """The finished run that this one goes on from; headwise run --from fills it in."""

    run: str = ""
    """its folder; none: this run begins anew"""
    hash: str = ""
    """of its manifest and its last checkpoint"""
    rounds: Natural = 0
    """how many rounds it had: draws and decay go on from there"""
    clients: tuple[str, ...] = ()
    """its clients, by name or else by number, in the order of their numbers; they keep these"""
    divided: Natural = 0
    """among how many clients the data is divided now; 0: among its natural ones"""


@dataclass(frozen=True)
class Drift:
    """Labels that change in the middle of a run."""

    round: Annotated[int, Range(0, 10**6)] = 0
    """the first round with other labels; 0: they never change"""
    what: Literal["swap", "vanish", "appear"] = "swap"
    """swap: a client's most frequent class and another one exchange their labels; vanish: its second most frequent
    class is gone; appear: that class is there only from then on"""
    share: Unit = 1.0
    """share of the clients, drawn from the seed, whose labels change; at least one"""
    clients: tuple[Natural, ...] = ()
    """the numbers of these clients instead"""
