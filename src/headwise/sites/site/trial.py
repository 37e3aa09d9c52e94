"""A few rounds of a study in this process, to see what a client's messages hold and weigh; nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ...data.federated import Clients
from ...engine.client.jobs import Answer, Job
from ...engine.driver import drive
from ...engine.executors.serial import Serial
from ...engine.host.process import one_thread
from ...engine.plan import Plan
from ...params import Params
from ...records import Record, nbytes, nbytes_by_field, pack

ROUNDS, OTHERS, SAMPLES = 2, 20, 16
"""rounds, since some messages grow after the first; most clients, and the samples of those at other sites"""
MASKED = 8
"""bytes of a masked number, whatever its type was"""


@dataclass(frozen=True)
class ClientTraffic:
    """What one client would exchange with the server."""

    client: int
    fields: Mapping[str, int]
    """bytes of each field of its upload in a round, the largest seen"""
    census: int
    """bytes of its answer before the first round"""
    down: int
    """bytes that it gets in a round, the largest seen"""
    varies: bool
    """whether rounds differed, or there are more clients than were rehearsed: these numbers are then no limit"""


@dataclass(frozen=True)
class Rehearsed:
    traffic: ClientTraffic
    message: Record
    asks: bool
    """whether the server must know which classes clients have"""


def rehearse_client(plan: Plan, client: int) -> Rehearsed:
    """Train this client on its own samples, among clients with a few copies of them in place of the other sites'."""
    count = min(len(plan.data), max(OTHERS, len(plan.models)))
    own = client if client < count else client % len(plan.models)
    train = replace(plan.experiment.train, epochs=1, drop_last=False)
    data = _among(plan.data, client, own, count)
    small = replace(plan, data=data, epochs_accounted=None).with_settings(train=train).for_rehearsal()
    recorder = _MessageRecorder(small, own)
    with one_thread():
        drive(small, recorder, rounds=ROUNDS)
    ups = recorder.messages
    sizes = [_sizes(plan, up) for up in ups]
    largest = {name: max(each[name] for each in sizes) for name in sizes[0]}
    varies = count < len(plan.data) or any(each != largest for each in sizes)
    traffic = ClientTraffic(client, largest, recorder.census, max(map(nbytes, recorder.downloads)), varies)
    return Rehearsed(traffic, ups[-1], bool(data.requests))


class _MessageRecorder(Serial):
    """Keeps what one client is sent and what it sends."""

    def __init__(self, plan: Plan, client: int) -> None:
        super().__init__(plan)
        self.client = client
        self.census = 0
        self.downloads: list[Record] = []
        self.messages: list[Record] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        jobs = list(jobs)
        self.downloads += [job.down for job in jobs if job.kind == "fit" and job.client == self.client]
        for answer in super().run(jobs):
            if answer.client == self.client and answer.up is not None:
                if answer.kind == "census":
                    self.census = nbytes(answer.up)
                else:
                    self.messages.append(answer.up)
            yield answer


@dataclass(frozen=True)
class _WatchedClients(Clients):
    """Clients that record whose labels the server needs."""

    requests: list[int] = field(default_factory=list[int])

    def labels(self, c: int) -> tuple[int, ...]:
        self.requests.append(c)
        return super().labels(c)


def _among(data: Clients, client: int, own: int, count: int) -> _WatchedClients:
    mine = data.client(client).train
    kept = [len(mine) if c == own else min(len(mine), SAMPLES) for c in range(count)]
    x, y = (torch.cat([part[:n] for n in kept]) for part in (mine.x, mine.y))
    return _WatchedClients(data.task, x, y, np.cumsum(kept).repeat(3).reshape(-1, 3))


def _sizes(plan: Plan, up: Record) -> dict[str, int]:
    sizes = nbytes_by_field(up)
    if plan.experiment.secure.sums:
        sizes = dict.fromkeys(sizes, 0)
        for name, t in pack(up).tensors.items():
            sizes[name.split("/")[0]] += MASKED * t.numel()
    return sizes


def kind_of_message(plan: Plan, up: Record) -> str:
    """The audited method that sends the same kind of thing: a head, only a body, or class means."""
    head = {f"head.{name}" for name, _ in plan.common.head.named_parameters()}
    sent = [value for value in vars(up).values() if isinstance(value, Params)]
    network = [set(value) for value in sent if set(value) <= set(plan.common.state())]
    if any(names & head for names in network):
        return "fedavg"
    if any(network):
        return "fedper"
    return "fedgh" if {"labels", "means"} <= vars(up).keys() else ""
