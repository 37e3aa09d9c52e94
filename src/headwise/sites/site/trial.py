"""A few rounds of a study in this process, to see what a client's messages hold and weigh; nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...audit.scene import LabelRequests
from ...contract.calls import aggregate, broadcast, server_init
from ...contract.method import Reply, record_types
from ...data.federated import Clients
from ...engine.client.jobs import Job, handle
from ...engine.client.state import ClientState
from ...engine.host.process import one_thread
from ...engine.plan import Plan
from ...engine.server_bench import ServerBench
from ...params import Params
from ...records import Nothing, Record, nbytes, nbytes_by_field, pack
from ...settings.options import Faults

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
    small = replace(plan, data=_among(plan.data, client, own, count), epochs_accounted=None)
    small = small.changed(train=train, faults=Faults())
    with one_thread():
        census, ups, downs, asks = _play(small, own)
    sizes = [_sizes(plan, up) for up in ups]
    largest = {name: max(each[name] for each in sizes) for name in sizes[0]}
    varies = count < len(plan.data) or any(each != largest for each in sizes)
    return Rehearsed(ClientTraffic(client, largest, census, max(map(nbytes, downs)), varies), ups[-1], asks)


def _play(plan: Plan, own: int) -> tuple[int, list[Record], list[Record], bool]:
    """The bytes of the census, what the own client sent and got in each round, and whether classes were asked for."""
    method, everyone, census, asks = plan.method, range(len(plan.data)), 0, False
    states: dict[int, ClientState | None] = {}
    ups, downs = list[Record](), list[Record]()
    server = server_init(method, ServerBench(plan, 0))
    if record_types(type(method)).census is not Nothing:
        replies = [_reply(handle(plan, Job("census", c, 0, Nothing(), measure=False), None)[0]) for c in everyone]
        server, census = method.answered(server, replies, ServerBench(plan, 0, "census")), nbytes(replies[own].up)
    for t in range(1, min(ROUNDS, plan.experiment.rounds) + 1):
        central, replies = LabelRequests(plan, t), list[Reply[Any]]()
        for c in everyone:
            down = broadcast(method, server, c, central)
            answer, states[c] = handle(plan, Job("fit", c, t, down, measure=False), states.get(c))
            replies.append(_reply(answer))
            if c == own:
                downs.append(down)
        server = aggregate(method, server, replies, central)
        ups.append(replies[own].up)
        asks |= bool(central.disclosed)
    return census, ups, downs, asks


def _reply(answer: Any) -> Reply[Any]:
    assert answer.up is not None  # a failing client raises
    return Reply(answer.client, answer.up, answer.n)


def _among(data: Clients, client: int, own: int, count: int) -> Clients:
    mine = data.client(client).train
    kept = [len(mine) if c == own else min(len(mine), SAMPLES) for c in range(count)]
    x, y = (torch.cat([part[:n] for n in kept]) for part in (mine.x, mine.y))
    return Clients(data.task, x, y, np.cumsum(kept).repeat(3).reshape(-1, 3))


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
