"""The lines that a run writes about its rounds and clients, and the questions that everybody asks of them.

The names are those of rounds.jsonl and clients.jsonl; `runs.shapes` checks what is read against these same types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from .metrics import ACCURACY, VALIDATION, Score

MOMENTS = ("pre", "post", "stale", "global")
_NUMBERS = {f"{ACCURACY.name}?": float, f"{VALIDATION}?": float, str: (float, None)}
"""as files hold them: JSON has no infinity, so the loss of a model that diverged is null"""

Figures = Annotated[dict[str, float], _NUMBERS]
"""one moment over all clients: the metrics that were measured, by name, and how many clients and samples there were"""
ClientScore = Annotated[Score | None, ({"n": int, **_NUMBERS}, None)]
"""None for a client without such samples"""


class Parts(TypedDict):
    """A client's scores on its test and validation samples."""

    test: ClientScore
    val: ClientScore


class ByField(TypedDict):
    """The bytes of a round's messages, by field of the record."""

    up: Mapping[str, float]
    down: Mapping[str, float]


class _SecondsAlways(TypedDict):
    round: float


class Seconds(_SecondsAlways, total=False):
    """Where a round's time went: on the driver's watch, and on those of all workers together."""

    train: float
    evaluate: float
    server: float
    stored: float
    """of the round before"""
    workers: Mapping[str, float]


_Global = TypedDict("_Global", {"global": Figures}, total=False)
_ClientGlobal = TypedDict("_ClientGlobal", {"global": Parts}, total=False)  # no class can have a field of this name


class Measured(_Global, total=False):
    """What the evaluation of a round adds to its line."""

    pre: Figures
    post: Figures
    stale: Figures
    bytes_evaluation: float
    """sent for the evaluation alone"""


class _RoundAlways(TypedDict):
    round: int
    bytes_up: float
    bytes_down: float
    seconds: Seconds


class Round(_RoundAlways, Measured, total=False):
    """A line of rounds.jsonl; what older versions did not write may be missing."""

    clients: list[int]
    fields: ByField
    bytes_idle: float
    """to clients that only listened"""
    failed: Mapping[str, list[int]]
    """clients by reason"""
    samples: float
    gflop: float
    """of training with native kernels, as if no gradient were zero"""
    memory: float


class _ClientAlways(TypedDict):
    round: int
    client: int


class ClientLine(_ClientAlways, _ClientGlobal, total=False):
    """A line of clients.jsonl: what a round found out about one client."""

    bytes_up: float
    bytes_down: float
    samples: float
    pre: Parts
    post: Parts


def evaluated(row: Mapping[str, Any]) -> bool:
    """Whether the clients were measured after this round."""
    return "bytes_evaluation" in row


def figures(row: Mapping[str, Any], moment: str) -> Figures:
    """The metrics of this moment; empty if nothing was measured then."""
    found: Figures = row.get(moment, {})
    return found if ACCURACY.name in found else {}


def chosen_by(found: Figures) -> float:
    """What rounds are chosen by: the accuracy on validation samples where there are any, else on test samples."""
    return found.get(VALIDATION, found.get(ACCURACY.name, 0.0))
