"""What travels between the server and a site: orders and reports, each a JSON text with records as bytes beside it.

What a site reads is data only: the experiment as plain values, records against types that the site's own method names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ..averaging import Shared
from ..engine.scores import Score
from ..engine.worker import Answer, Failure, Job
from ..errors import ClientError
from ..method import RecordTypes
from ..records import Record, RecordError, decode, encode


class Parcel(NamedTuple):
    """What one message holds."""

    text: str
    records: list[bytes]


class Lost(NamedTuple):
    """In place of a reply: why there is none."""

    why: str


class Link(Protocol):
    """The way to the nodes."""

    def node_of(self, client: int) -> int:
        """The node that has this client."""
        ...

    def exchange(self, parcels: Mapping[int, Parcel]) -> Iterator[Parcel | Lost]:
        """Send each node its message; the replies in the order in which they come."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Visit(NamedTuple):
    """A job for a client, and by its digest the state that it starts from; an empty one means its first."""

    job: Job
    state: str


@dataclass(frozen=True)
class Order:
    """All that a site is asked to do in one message."""

    run: str
    """which run's states these are"""
    experiment: str
    """as JSON"""
    visits: Sequence[Visit]


@dataclass(frozen=True)
class Report:
    """What a site answers."""

    answers: Sequence[tuple[Answer, str]]
    """each with the digest of the client's new state; empty if it has none"""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    process: int = 0
    memory: int = 0


def pack_order(order: Order) -> Parcel:
    """The order as one message; a record for many clients is in it once."""
    records: list[bytes] = []
    places: dict[int, int] = {}
    visits: list[dict[str, Any]] = []
    for job, state in order.visits:
        if id(job.down) not in places:
            places[id(job.down)] = len(records)
            records.append(encode(job.down))
        plain = {"task": job.task, "client": job.client, "t": job.t, "measure": job.measure}
        visits.append({**plain, "down": places[id(job.down)], "state": state})
    return Parcel(json.dumps({"run": order.run, "experiment": order.experiment, "visits": visits}), records)


def experiment_in(parcel: Parcel) -> str:
    """The experiment of an order: with it a site learns the types of the records."""
    with _reading("order"):
        text = json.loads(parcel.text)["experiment"]
        json.loads(text)
        return text


def unpack_order(parcel: Parcel, types: RecordTypes) -> Order:
    """The order that this message holds."""
    downs: dict[tuple[int, type[Record]], Record] = {}
    visits: list[Visit] = []
    with _reading("order"):
        values = json.loads(parcel.text)
        for given in values["visits"]:
            cls: type[Record] = Shared if given["task"] == "global" else types.down
            at = (given.pop("down"), cls)
            if at not in downs:
                downs[at] = decode(cls, parcel.records[at[0]])
            visits.append(Visit(state=given.pop("state"), job=Job(**given, down=downs[at])))
        return Order(values["run"], values["experiment"], visits)


def pack_report(report: Report) -> Parcel:
    """The report as one message."""
    records: list[bytes] = []
    answers: list[dict[str, Any]] = []
    for answer, state in report.answers:
        up = None
        if answer.up is not None:
            up = len(records)
            records.append(encode(answer.up))
        answers.append({**asdict(replace(answer, up=None)), "up": up, "state": state})
    plain = {"seconds": dict(report.seconds), "process": report.process, "memory": report.memory}
    return Parcel(json.dumps({**plain, "answers": answers}), records)


def pack_error(error: Exception) -> Parcel:
    """A report that says why there is none."""
    return Parcel(json.dumps({"error": str(error)}), [])


def unpack_report(parcel: Parcel, types: RecordTypes) -> Report:
    """The report that this message holds, or its error raised here."""
    answers: list[tuple[Answer, str]] = []
    with _reading("report"):
        values = json.loads(parcel.text)
        if "error" in values:
            raise ClientError(values["error"])
        for given in values["answers"]:
            state, up = given.pop("state"), given.pop("up")
            failure = (why := given.pop("failure")) and Failure(*map(str, why))
            test, val = (s and Score(**s) for s in (given.pop("test"), given.pop("val")))
            up = None if up is None else decode(types.up, parcel.records[up])
            answers.append((Answer(**given, up=up, test=test, val=val, failure=failure), state))
        return Report(answers, values["seconds"], values["process"], values["memory"])


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """What comes from elsewhere can be anything."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RecordError(f"this message is no {what}: {type(error).__name__}: {error}") from error
