"""The types of the lines in rounds.jsonl and clients.jsonl, and how to query them.

`runs.shapes` validates files against these types.
"""

# no `from __future__ import annotations` here: `Required` must not become a string, or it has no effect

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required, TypedDict

from .metrics import ACCURACY, VALIDATION, Score

MOMENTS = ("pre", "post", "stale", "global")
Reason = Literal["finished", "patience", "budget", "interrupted"]
ENDS: Mapping[str, bool] = {"finished": True, "patience": True, "budget": False, "interrupted": False}
"""why a session ended, and whether the run is then complete"""
UNFINISHED = "unfinished"
"""of a run that was killed, or that is still running"""
_NUMBERS = {f"{ACCURACY.name}?": float, f"{VALIDATION}?": float, str: (float, None)}
"""as stored: JSON has no infinity, so the loss of a diverged model is null"""

Figures = Annotated[dict[str, float], _NUMBERS]
"""one moment over all clients: the measured metrics by name, and the numbers of clients and samples"""
ClientScore = Annotated[Score | None, ({"n": int, **_NUMBERS}, None)]
"""None if the client has no such samples"""


class PartScores(TypedDict):
    test: ClientScore
    val: ClientScore


class ByField(TypedDict):
    """Bytes of a round's messages by record field."""

    up: Mapping[str, float]
    down: Mapping[str, float]


class Seconds(TypedDict, total=False):
    """Where a round's time went: wall time in the driver, and `workers` summed over all workers."""

    round: Required[float]
    train: float
    evaluate: float
    server: float
    stored: float
    """storing the previous round"""
    workers: Mapping[str, float]


# `global` is a keyword, so it can't be a field in a class body
_Global = TypedDict("_Global", {"global": Figures}, total=False)
_ClientGlobal = TypedDict("_ClientGlobal", {"global": PartScores}, total=False)


class Measured(_Global, total=False):
    """What an evaluation adds to its round's line."""

    pre: Figures
    post: Figures
    stale: Figures
    bytes_evaluation: float
    """sent only for the evaluation"""


class Round(Measured, total=False):
    """A line of rounds.jsonl; older versions wrote only the required fields."""

    round: Required[int]
    bytes_up: Required[float]
    bytes_down: Required[float]
    seconds: Required[Seconds]
    clients: list[int]
    fields: ByField
    bytes_census: float
    """of all clients' answers before the first round, in its line"""
    bytes_idle: float
    """to clients that only received"""
    failed: Mapping[str, list[int]]
    """clients by reason of failure"""
    samples: float
    gflop: float
    """of training with native kernels, as if no gradient were zero"""
    memory: float


class ClientLine(_ClientGlobal, total=False):
    """A line of clients.jsonl: one client in one round."""

    round: Required[int]
    client: Required[int]
    bytes_up: float
    bytes_down: float
    samples: float
    pre: PartScores
    post: PartScores


def evaluated(row: Mapping[str, Any]) -> bool:
    """Whether clients were evaluated after this round."""
    return "bytes_evaluation" in row


def figures(row: Mapping[str, Any], moment: str) -> Figures:
    """The metrics at this moment; empty if it was not measured."""
    found: Figures = row.get(moment, {})
    return found if ACCURACY.name in found else {}


def chosen_by(found: Figures) -> float:
    """The accuracy that picks the best round: on validation samples if there are any, else on test samples."""
    return found.get(VALIDATION, found.get(ACCURACY.name, 0.0))
