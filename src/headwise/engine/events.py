"""What the driver tells its observers: the display, the run's folder, trackers and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..log.schema import ClientLine, PartScores, Round
from ..records import Record
from .client.state import States

Reason = Literal["finished", "patience", "budget", "interrupted"]


@dataclass(frozen=True)
class Progress:
    """All that a run needs to go on after round t with the same bits, but for the clients' states."""

    t: int
    server: Record
    last: Mapping[int, PartScores]
    """each client's scores after its last training"""
    best: float | None = None
    """the best evaluation so far"""
    waited: int = 0
    """evaluations since then"""


@dataclass(frozen=True)
class RunStarted:
    """Before the first round of this session."""

    rounds: int
    clients: int
    start: int
    """rounds that were done before"""


@dataclass(frozen=True)
class RoundStarted:
    """The clients of round t are known."""

    t: int
    clients: tuple[int, ...]


@dataclass(frozen=True)
class ClientDone:
    """A client has trained or was evaluated."""

    t: int
    client: int
    kind: str
    samples: int


@dataclass(frozen=True)
class ClientFailed:
    """A client gave no answer, or one that was refused; it may still be asked again."""

    t: int
    client: int
    kind: str
    reason: str
    """in a word or two, to be counted"""
    detail: str


@dataclass(frozen=True)
class RoundEnded:
    """Round t is complete; whoever stores it may now do so."""

    row: Round
    """the line of rounds.jsonl"""
    clients: list[ClientLine]
    """the lines of clients.jsonl"""
    progress: Progress
    states: States
    """the states of all clients that the engine keeps"""
    changed: tuple[int, ...]
    """the clients whose state is new"""


@dataclass(frozen=True)
class RunEnded:
    """No more rounds in this session."""

    reason: Reason


Event = RunStarted | RoundStarted | ClientDone | ClientFailed | RoundEnded | RunEnded
Observer = Callable[[Event], None]
