"""Orders and reports: the messages between the server and a site, each JSON text plus records as bytes.

Messages hold data only. A site decodes records against the types of its own installed method; the server checks
reports just as strictly, because anybody may run a site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol

from ...contract.method import RecordTypes
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer, Failure, Job, JobKind, answered_with, sent_with
from ...errors import ClientError, ConfigError
from ...log.schema import restored
from ...records import Packed, Record, RecordError, decode, encode, from_bytes, to_bytes
from ...settings.fields import Natural, Range, build, convert
from .envelope import Lost, SiteMessage


class UnopenedError(ClientError):
    """A masked sum stays closed: too few sites, or unusable shares."""


class Link(Protocol):
    """How the server reaches nodes."""

    def node_of(self, client: int) -> int | None:
        """The node with this client; None if no node has claimed it yet."""
        ...

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        """Send each node its message, which expires after `seconds`; yield replies as they arrive."""
        ...

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        """After a loss, look for the nodes of these clients again; `patiently` also waits for them."""
        ...

    def close(self) -> None: ...


class SiteJob(NamedTuple):
    job: Job
    state: str
    """digest of the client's state before the job; empty if it has none"""


@dataclass(frozen=True)
class Letter:
    """Bytes from or for one party of a masked sum."""

    party: Natural
    text: str
    """hexadecimal"""


@dataclass(frozen=True)
class Order:
    """What the server asks of a site in one round, for all of its clients."""

    run: str
    experiment: str
    """as JSON"""
    site_jobs: Sequence[SiteJob]
    sealed: tuple[Letter, ...] | None = None
    """with masked sums: the shares that other sites have sealed for this one"""


@dataclass(frozen=True)
class Report:
    """A site's reply to an order."""

    answers: Sequence[tuple[Answer, str]]
    """each with the digest of the client's new state, or an empty string"""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    process: int = 0
    memory: int = 0
    masked: Packed | None = None
    """the masked sum of all records, which are then left out"""


@dataclass(frozen=True)
class _PlainJob:
    kind: JobKind
    client: Natural
    t: Natural
    measure: bool
    down: Natural
    state: str


@dataclass(frozen=True)
class _PlainAnswer:
    """An `Answer` without its scores, as JSON holds it."""

    kind: JobKind
    client: Natural
    n: Natural
    samples: Natural
    t: Natural
    failure: tuple[str, ...] | None
    up: Natural | None
    state: str
    flops: Annotated[float, Range(0, 1e21)] = 0.0


def pack_order(order: Order) -> SiteMessage:
    """A record that many clients share is packed once."""
    records: list[bytes] = []
    places: dict[int, int] = {}
    site_jobs: list[dict[str, Any]] = []
    for job, state in order.site_jobs:
        if id(job.down) not in places:
            places[id(job.down)] = len(records)
            records.append(encode(job.down))
        plain = {"kind": job.kind, "client": job.client, "t": job.t, "measure": job.measure}
        site_jobs.append({**plain, "down": places[id(job.down)], "state": state})
    sealed = None if order.sealed is None else [asdict(letter) for letter in order.sealed]
    plain = {"run": order.run, "experiment": order.experiment, "site_jobs": site_jobs, "sealed": sealed}
    return SiteMessage(to_json(plain), records)


def experiment_in(message: SiteMessage) -> str:
    """The experiment of an order or a stage: a site needs it first, to know the record types."""
    with reading("order"):
        text = convert(json.loads(message.text)["experiment"], str, "experiment")
        json.loads(text)
        return text


def unpack_order(message: SiteMessage, types: RecordTypes) -> Order:
    downs: dict[tuple[int, type[Record]], Record] = {}
    site_jobs: list[SiteJob] = []
    with reading("order"):
        values = json.loads(message.text)
        for given in (build(_PlainJob, v) for v in values["site_jobs"]):
            cls = sent_with(given.kind, types)
            at = (given.down, cls)
            if at not in downs:
                downs[at] = decode(cls, message.records[given.down])
            site_jobs.append(SiteJob(Job(given.kind, given.client, given.t, downs[at], given.measure), given.state))
        sealed = values.get("sealed")
        letters = None if sealed is None else tuple(build(Letter, each) for each in sealed)
        run, experiment = (convert(values[name], str, name) for name in ("run", "experiment"))
        return Order(run, experiment, site_jobs, letters)


def pack_report(report: Report) -> SiteMessage:
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
    return SiteMessage(to_json({**plain, "answers": answers}), records)


def pack_error(error: Exception) -> SiteMessage:
    return SiteMessage(to_json({"error": str(error)}), [])


def said_in(message: SiteMessage) -> dict[str, Any]:
    """The values of a site's reply; raises the error that it reports. Call it inside `reading`."""
    values = json.loads(message.text)
    if "error" in values:
        raise ClientError(str(values["error"]))
    return values


def unpack_report(message: SiteMessage, types: RecordTypes) -> Report:
    """The report; raises the site's own error as a `ClientError`."""
    answers: list[tuple[Answer, str]] = []
    with reading("report"):
        values = said_in(message)
        for given in values["answers"]:
            test, val = (restored(given.pop(part)) for part in ("test", "val"))
            said = build(_PlainAnswer, given)
            failure = None if said.failure is None else Failure(*said.failure)
            up = None if said.up is None else decode(answered_with(said.kind, types), message.records[said.up])
            plain = (said.kind, said.client, said.n, up, test, val, said.samples, said.t, failure)
            answers.append((Answer(*plain, flops=said.flops), said.state))
        seconds = {str(k): float(v) for k, v in values["seconds"].items()}
        masked = from_bytes(message.records[values["masked"]]) if "masked" in values else None
        return Report(answers, seconds, int(values["process"]), int(values["memory"]), masked)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any failure to parse a message into a `RecordError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise RecordError(f"this message is not a valid {what}: {type(error).__name__}: {error}") from error
