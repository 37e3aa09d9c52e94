"""The messages between the server and a site, each JSON text plus records as bytes.

The server sends an order, and the site answers with a report; `secagg.round` has the messages around a masked sum.
Messages hold data only. A site decodes records against the types of its own installed method; the server checks replies
just as strictly, because anybody may run a site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from ...contract.method import RecordTypes
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer, Failure, Job, JobKind, answer_type, message_type
from ...errors import ClientError, ConfigError
from ...log.metrics import Score
from ...log.schema import restore_score
from ...records import Packed, Record, RecordError, decode, encode, from_bytes, to_bytes
from ...settings.fields import Natural, Range, build, convert
from .envelope import SiteMessage, make_printable

UNREADABLE = (
    KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, ConfigError
)  # fmt: skip
"""what parsing hostile values can raise"""


class SiteJob(NamedTuple):
    job: Job
    state: str
    """digest of the client's state before the job; empty if it has none"""


@dataclass(frozen=True)
class Order:
    """What a site is to do in one round, for all of its clients."""

    run: str
    experiment: str
    """as JSON"""
    site_jobs: Sequence[SiteJob]
    sealed: tuple[str, ...] | None = None
    """with masked sums: the share that each party has sealed for this site; empty if it dealt none"""


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


MOST_TEXT = 5 * 10**7
"""most characters of a message's text: as JSON values, they take up to twenty times as many bytes"""
MOST_SECTIONS = 50
"""most sections of a report's seconds"""
Bytes = Annotated[int, Range(0, 2**53)]
Seconds = Annotated[float, Range(0, 1e9)]
DIGEST = re.compile(r"(?:[0-9a-f]{64})?", re.ASCII)
SECTION = re.compile(r"[a-z_. -]{1,40}", re.ASCII)


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
    plain = {"run": order.run, "experiment": order.experiment, "site_jobs": site_jobs, "sealed": order.sealed}
    return SiteMessage(to_json(plain), records)


def load_text(message: SiteMessage) -> Any:
    """The values of a message's text; a `ValueError` if they can't be read."""
    if len(message.text) > MOST_TEXT:
        raise ValueError(f"its text has {len(message.text):,} characters, but at most {MOST_TEXT:,} are read")
    return json.loads(message.text)


def experiment_in(message: SiteMessage) -> str:
    """The experiment of an order or a stage: a site needs it first, to know the record types."""
    with refuse_invalid("order"):
        return convert(load_text(message)["experiment"], str, "experiment")


def unpack_order(message: SiteMessage, types: RecordTypes) -> Order:
    downs: dict[tuple[int, type[Record]], Record] = {}
    site_jobs: list[SiteJob] = []
    with refuse_invalid("order"):
        values = load_text(message)
        for given in (build(_PlainJob, v) for v in values["site_jobs"]):
            cls = message_type(given.kind, types)
            at = (given.down, cls)
            if at not in downs:
                downs[at] = decode(cls, message.records[given.down])
            site_jobs.append(SiteJob(Job(given.kind, given.client, given.t, downs[at], given.measure), given.state))
        run, experiment = (convert(values[name], str, name) for name in ("run", "experiment"))
        return Order(run, experiment, site_jobs, convert(values.get("sealed"), tuple[str, ...] | None, "sealed"))


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


def read_reply(message: SiteMessage) -> dict[str, Any]:
    """The values of a site's reply; raises the error that it reports. Call it inside `refuse_invalid`."""
    values = load_text(message)
    if "error" in values:
        raise ClientError(make_printable(str(values["error"])))
    return values


def unpack_report(message: SiteMessage, types: RecordTypes) -> Report:
    """The report; raises the site's own error as a `ClientError`."""
    answers: list[tuple[Answer, str]] = []
    with refuse_invalid("report"):
        values = read_reply(message)
        for given in values["answers"]:
            test, val = (_read_score(given.pop(part)) for part in ("test", "val"))
            plain = build(_PlainAnswer, given)
            failure = None if plain.failure is None else Failure(*map(make_printable, plain.failure))
            up = None if plain.up is None else decode(answer_type(plain.kind, types), message.records[plain.up])
            parts = (plain.kind, plain.client, plain.n, up, test, val, plain.samples, plain.t, failure)
            if not DIGEST.fullmatch(plain.state):
                raise ValueError("a state is not named by its digest")
            answers.append((Answer(*parts, flops=plain.flops), plain.state))
        masked = (
            from_bytes(message.records[convert(values["masked"], Natural, "masked")]) if "masked" in values else None
        )
        process, memory = (convert(values[name], Bytes, name) for name in ("process", "memory"))
        return Report(answers, _read_seconds(values["seconds"]), process, memory, masked)


def _read_score(given: Any) -> Score | None:
    score = restore_score(given)
    if score is not None:
        convert(score["n"], Natural, "n")
    return score


def _read_seconds(given: dict[Any, Any]) -> dict[str, float]:
    """A report's seconds by section, which the server adds up and writes to its log."""
    if len(given) > MOST_SECTIONS or not all(SECTION.fullmatch(name) for name in given):
        raise ValueError("seconds has other sections than a site measures")
    return {name: convert(value, Seconds, "seconds") for name, value in given.items()}


@contextmanager
def refuse_invalid(what: str) -> Iterator[None]:
    """Turn any failure to parse a message into a `RecordError`."""
    try:
        yield
    except UNREADABLE as error:
        detail = make_printable(f"{type(error).__name__}: {error}")
        raise RecordError(f"this message is not a valid {what}: {detail}") from error
