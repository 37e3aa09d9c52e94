"""The types of the lines in rounds.jsonl and clients.jsonl, and how to query them.

`runs.files` validates files against these types.
"""

# no `from __future__ import annotations` here: `Required` must not become a string, or it has no effect

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required, TypedDict

from .metrics import ACCURACY, Metric, Score, metrics

MOMENTS = ("pre", "post", "stale", "global")
JUDGED = ("pre", "stale", "global")
"""the first of these that a run measures is the one that it is judged by"""
Reason = Literal["finished", "patience", "budget", "interrupted"]
ENDS: Mapping[str, bool] = {"finished": True, "patience": True, "budget": False, "interrupted": False}
"""why a session ended, and whether the run is then complete"""
UNFINISHED = "unfinished"
"""of a run that was killed, or that is still running"""
_NUMBERS = {f"{ACCURACY.name}?": float, f"{ACCURACY.validation}?": float, str: (float, None)}
"""as stored: JSON has no infinity, so the loss of a diverged model is null"""

Figures = Annotated[dict[str, float], _NUMBERS]
"""one moment over all clients: the measured metrics by name, the numbers of clients and samples; and as `auc_clients`,
of a metric that not all of these clients have, the number that have it"""
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
    workers: Required[Mapping[str, float]]


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
    """A line of rounds.jsonl; round 0 is before any training."""

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
    name: str
    """added on reading, where the data names its clients"""
    bytes_up: float
    bytes_down: float
    samples: float
    pre: PartScores
    post: PartScores


def was_evaluated(row: Mapping[str, Any]) -> bool:
    """Whether clients were evaluated after this round."""
    return "bytes_evaluation" in row


def figures(row: Mapping[str, Any], moment: str, main: Metric = ACCURACY) -> Figures:
    """The metrics at this moment; empty if the main metric was not measured, or is not finite."""
    at_moment: Figures = row.get(moment, {})
    return at_moment if math.isfinite(_value(at_moment, main.name)) else {}


def selection_value(figures: Mapping[str, Any], main: Metric = ACCURACY) -> float:
    """The value that picks the best round: on validation samples if there are any, else on test samples."""
    return _value(figures, main.validation if main.validation in figures else main.name)


def _value(figures: Mapping[str, Any], name: str) -> float:
    value = figures.get(name)
    return math.nan if value is None else value


def restore_score(stored: Mapping[str, Any] | None) -> Score | None:
    """A score read from JSON, where null means not finite; drops metrics that are not installed here."""
    if stored is None:
        return None
    known = {m.name: stored[m.name] for m in metrics() if m.name in stored}
    values = {name: math.nan if value is None else float(value) for name, value in known.items()}
    if not math.isfinite(values.get(ACCURACY.name, 0.0)):
        raise ValueError(f"{ACCURACY.name} is {stored[ACCURACY.name]!r}")
    return {"n": int(stored["n"]), **values}
