"""What travels between the server and a site: orders and reports, each a JSON text with records as bytes beside it.

What a site reads is data only: the experiment as plain values, records against types that the site's own method names.
What a server reads is checked as strictly: a site may be anybody's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from ...contract.averaging import Shared
from ...contract.method import RecordTypes
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer, Failure, Job, Task
from ...errors import ClientError, ConfigError
from ...log.metrics import restored
from ...records import Packed, Record, RecordError, decode, encode, from_bytes, to_bytes
from ...settings.fields import Natural, build, convert


class Parcel(NamedTuple):
    """What one message holds."""

    text: str
    records: list[bytes]

    @property
    def size(self) -> int:
        """Bytes, but for what the transport adds."""
        return len(self.text) + sum(map(len, self.records))


class Lost(NamedTuple):
    """In place of a reply: why there is none."""

    why: str
    reason: Literal["no answer", "late", "dropped"] = "no answer"
    """dropped: the sum of its round was opened without it"""


class UnopenedError(ClientError):
    """A masked sum that is not opened."""


class Link(Protocol):
    """The way to the nodes."""

    def node_of(self, client: int) -> int | None:
        """The node that has this client; none if nobody has said so yet."""
        ...

    def exchange(self, parcels: Mapping[int, Parcel], seconds: float | None) -> Iterator[tuple[int, Parcel | Lost]]:
        """Send each node its message, for which it has so long; the replies in the order in which they come."""
        ...

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        """After a loss: look for the nodes of these clients again, and wait for them if patient."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Visit(NamedTuple):
    """A job for a client, and the digest of the state from which it starts; empty if it has none."""

    job: Job
    state: str


@dataclass(frozen=True)
class Letter:
    """Bytes from or for a party of a masked sum, as a hexadecimal text."""

    party: Natural
    text: str


@dataclass(frozen=True)
class Order:
    """What a site is asked to do in one round, for all of its clients."""

    run: str
    experiment: str
    """as JSON"""
    visits: Sequence[Visit]
    sealed: tuple[Letter, ...] | None = None
    """where sums are masked: what the other sites have sealed for this one"""


@dataclass(frozen=True)
class Report:
    """What a site answers."""

    answers: Sequence[tuple[Answer, str]]
    """each with the digest of the client's new state; empty if it has none"""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    process: int = 0
    memory: int = 0
    masked: Packed | None = None
    """in place of all records: their sum under masks"""


@dataclass(frozen=True)
class _Asked:
    """A visit's plain part."""

    task: Task
    client: Natural
    t: Natural
    measure: bool
    down: Natural
    state: str


@dataclass(frozen=True)
class _Said:
    """An answer's plain part, but for its scores."""

    task: Task
    client: Natural
    n: Natural
    samples: Natural
    t: Natural
    failure: tuple[str, ...] | None
    up: Natural | None
    state: str


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
    sealed = None if order.sealed is None else [asdict(letter) for letter in order.sealed]
    plain = {"run": order.run, "experiment": order.experiment, "visits": visits, "sealed": sealed}
    return Parcel(to_json(plain), records)


def experiment_in(parcel: Parcel) -> str:
    """The experiment of an order: with it a site learns the types of the records."""
    with reading("order"):
        text = convert(json.loads(parcel.text)["experiment"], str, "experiment")
        json.loads(text)
        return text


def unpack_order(parcel: Parcel, types: RecordTypes) -> Order:
    """The order that this message holds."""
    downs: dict[tuple[int, type[Record]], Record] = {}
    visits: list[Visit] = []
    with reading("order"):
        values = json.loads(parcel.text)
        for given in (build(_Asked, v) for v in values["visits"]):
            cls: type[Record] = Shared if given.task == "global" else types.down
            at = (given.down, cls)
            if at not in downs:
                downs[at] = decode(cls, parcel.records[given.down])
            visits.append(Visit(Job(given.task, given.client, given.t, downs[at], given.measure), given.state))
        sealed = values.get("sealed")
        letters = None if sealed is None else tuple(build(Letter, each) for each in sealed)
        run, experiment = (convert(values[name], str, name) for name in ("run", "experiment"))
        return Order(run, experiment, visits, letters)


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
    if report.masked is not None:
        plain["masked"] = len(records)
        records.append(to_bytes(report.masked))
    return Parcel(to_json({**plain, "answers": answers}), records)


def pack_error(error: Exception) -> Parcel:
    """A report that says why there is none."""
    return Parcel(to_json({"error": str(error)}), [])


def said_in(parcel: Parcel) -> dict[str, Any]:
    """The text of what a site answers, or its error raised here; to be called while `reading`."""
    values = json.loads(parcel.text)
    if "error" in values:
        raise ClientError(str(values["error"]))
    return values


def unpack_report(parcel: Parcel, types: RecordTypes) -> Report:
    """The report that this message holds, or its error raised here."""
    answers: list[tuple[Answer, str]] = []
    with reading("report"):
        values = said_in(parcel)
        for given in values["answers"]:
            test, val = (restored(given.pop(part)) for part in ("test", "val"))
            said = build(_Said, given)
            failure = None if said.failure is None else Failure(*said.failure)
            up = None if said.up is None else decode(types.up, parcel.records[said.up])
            plain = (said.task, said.client, said.n, up, test, val, said.samples, said.t, failure)
            answers.append((Answer(*plain), said.state))
        seconds = {str(k): float(v) for k, v in values["seconds"].items()}
        masked = from_bytes(parcel.records[values["masked"]]) if "masked" in values else None
        return Report(answers, seconds, int(values["process"]), int(values["memory"]), masked)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What comes from elsewhere can be anything."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise RecordError(f"this message is no {what}: {type(error).__name__}: {error}") from error
