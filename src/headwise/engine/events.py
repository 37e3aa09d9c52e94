"""What the driver reports to its observers: the display, the run's folder, trackers and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..log.metrics import ACCURACY, Metric
from ..log.schema import ClientLine, PartScores, Reason, Round
from ..records import Record
from .client.state import States


@dataclass(frozen=True)
class Progress:
    """What a run needs, besides the clients' states, to continue after round t with the same bits."""

    t: int
    server: Record
    last: Mapping[int, PartScores]
    """each client's scores after its last training"""
    best: float | None = None
    """the best evaluation so far"""
    waited: int = 0
    """evaluations since the best one"""


@dataclass(frozen=True)
class RunStarted:
    rounds: int
    clients: int
    start: int
    """rounds done in earlier sessions"""
    metric: Metric = ACCURACY
    """the run's main metric"""


@dataclass(frozen=True)
class StartMeasured:
    row: Round
    """the line of round 0 in rounds.jsonl"""
    clients: list[ClientLine]


@dataclass(frozen=True)
class RoundStarted:
    t: int
    clients: tuple[int, ...]


@dataclass(frozen=True)
class ClientDone:
    t: int
    client: int
    kind: str
    samples: int


@dataclass(frozen=True)
class ClientFailed:
    """A client gave no answer, or one that was refused; its job may be sent again."""

    t: int
    client: int
    kind: str
    reason: str
    """a word or two to count failures by"""
    detail: str


@dataclass(frozen=True)
class RoundEnded:
    """Round t is complete and may be stored."""

    row: Round
    """a line of rounds.jsonl"""
    clients: list[ClientLine]
    """lines of clients.jsonl"""
    progress: Progress
    states: States
    """all client states that the engine keeps"""
    changed: tuple[int, ...]
    """clients whose state is new"""


@dataclass(frozen=True)
class NewClients:
    """The clients that never trained have joined and were measured, after the last round."""

    figures: dict[str, Any]
    """the result of `joining.join_all`"""


@dataclass(frozen=True)
class RunEnded:
    reason: Reason


Event = RunStarted | StartMeasured | RoundStarted | ClientDone | ClientFailed | RoundEnded | NewClients | RunEnded
Observer = Callable[[Event], None]
