"""Wrappers of methods and executors that let a check see what passes through them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch

from ..contract import calls
from ..contract.method import Central, Local, Method, Predictor, Reply, Update, record_types
from ..data.federated import Clients
from ..engine.client.jobs import Answer, Job, handle
from ..engine.client.state import decode_state
from ..engine.executors.base import states_of
from ..engine.executors.local import Serial
from ..engine.host import Clock
from ..engine.plan import Plan
from ..models.split import SplitModel
from ..records import R, Record, decode, encode
from .toy import FEATURES, AnyMethod, Recorder, once, play, toy_plan


class Watched(Method[Record, Record, Record, Record]):
    """Forwards to a method, and notes in `complaints` when it changes its arguments or returns nonsense."""

    fixed_layout: ClassVar[bool] = False  # what is sent back is checked for the method itself

    def __new__(cls, method: AnyMethod) -> Watched:
        """Of a class with the method's census: the engine asks the class for it, not the instance."""
        return object.__new__(type(cls.__name__, (cls,), {"census": method.census}))

    def __init__(self, method: AnyMethod) -> None:
        self.method, self.complaints = method, list[str]()

    def question(self, local: Local) -> Record:
        return self.method.question(local)

    def answered(self, server: Record, replies: Sequence[Reply[Record]], central: Central) -> Record:
        with self._untouched("answered", server=server):
            return self.method.answered(server, replies, central)

    def server_init(self, central: Central) -> Record:
        return calls.server_init(self.method, central)

    def broadcast(self, server: Record, client: int, central: Central) -> Record:
        with self._untouched("broadcast", server=server):
            return calls.broadcast(self.method, server, client, central)

    def aggregate(self, server: Record, replies: Sequence[Reply[Record]], central: Central) -> Record:
        ups = {f"reply of client {r.client}": r.up for r in replies}
        with self._untouched("aggregate", **{"server": server, **ups}):
            return calls.aggregate(self.method, server, replies, central)

    def updates_idle(self) -> bool:
        return self.method.updates_idle()

    def global_model(self, server: Record, central: Central) -> SplitModel | None:
        with self._untouched("global_model", server=server):
            return self.method.global_model(server, central)

    def client_init(self, local: Local) -> Record:
        return calls.client_init(self.method, local)

    def local_update(self, me: Record, down: Record, local: Local) -> Update[Record, Record]:
        with self._untouched("local_update", me=me, down=down):
            update = calls.local_update(self.method, me, down, local)
        self._sane("Update.model", update.model, local)
        return update

    def idle_update(self, me: Record, down: Record, local: Local) -> Record:
        with self._untouched("idle_update", me=me, down=down):
            return self.method.idle_update(me, down, local)

    def personalize(self, me: Record, down: Record, local: Local) -> Predictor:
        with self._untouched("personalize", me=me, down=down):
            model = calls.personalize(self.method, me, down, local)
        self._sane("personalize", model, local)
        return model

    @contextmanager
    def _untouched(self, who: str, **records: Record) -> Iterator[None]:
        before = {name: encode(r) for name, r in records.items()}
        yield
        changed = [name for name, r in records.items() if encode(r) != before[name]]
        self.complaints += [f"{who} changed the record {name!r} in place" for name in changed]

    def _sane(self, who: str, model: Predictor, local: Local) -> None:
        """Complain unless the predictor gives each sample one finite score per class."""
        if isinstance(model, torch.nn.Module):
            model.eval()
        x = torch.linspace(-2, 2, 3 * FEATURES).view(3, FEATURES)
        with torch.no_grad():
            z = model(x)
        if tuple(z.shape) != (3, local.classes):
            self.complaints.append(f"{who} gives scores of shape {tuple(z.shape)} for (3, {local.classes})")
        elif not z.isfinite().all():
            self.complaints.append(f"{who} gives scores that are not finite")


class Training(NamedTuple):
    job: Job
    answer: Answer
    before: Record | None
    after: Record


class Listening:
    """A serial executor that keeps every training's messages and states."""

    workers = 1

    def __init__(self, plan: Plan) -> None:
        self._serial, self.trainings = Serial(plan), list[Training]()
        self.states, self.clock = self._serial.states, self._serial.clock

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            before = self.states.get(job.client)
            for answer in self._serial.run([job]):
                if job.kind == "fit":
                    me = before.me if before else None
                    self.trainings.append(Training(job, answer, me, self.states[job.client].me))
                yield answer

    def close(self) -> None:
        pass


class Overheard(NamedTuple):
    plan: Plan
    recorder: Recorder
    trainings: list[Training]


def record_messages(method: AnyMethod) -> Overheard:
    """Two rounds in which all clients take part: in the second, states and downloads come from training."""

    def listen() -> Overheard:
        plan = toy_plan(method, rounds=2, moments=())
        executor = Listening(plan)
        return Overheard(plan, play(plan, executor), executor.trainings)

    return once("heard", method, listen)


def up_of(training: Training) -> Record:
    assert training.answer.up is not None  # training always answers with a message
    return training.answer.up


class Backwards:
    """Clients work one by one, and answer, in reverse order."""

    workers = 1

    def __init__(self, plan: Plan) -> None:
        self._executor = Serial(plan)
        self.states, self.clock = self._executor.states, self._executor.clock

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        yield from self._executor.run(list(jobs)[::-1])

    def close(self) -> None:
        self._executor.close()


class Apart:
    """Every client at its own site: no other samples in memory, and everything it is sent goes through bytes."""

    workers = 1

    def __init__(self, plan: Plan) -> None:
        self._plan, self._me = plan, record_types(type(plan.method)).client
        self.states, self.clock = states_of(plan, None), Clock()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            plan = dataclasses.replace(self._plan, data=_only(self._plan.data, job.client))
            state = self.states.encode(job.client)
            before = None if state is None else decode_state(self._me, state)
            answer, after = handle(plan, dataclasses.replace(job, down=_deliver(job.down)), before, self.clock)
            if after is not None:
                self.states[job.client] = after
            yield dataclasses.replace(answer, up=None if answer.up is None else _deliver(answer.up))

    def close(self) -> None:
        pass


def _only(data: Clients, client: int) -> Clients:
    """The clients, with a copy of this one's samples and none for the others."""
    a, (*_, b) = data.start(client), data.ends[client]
    ends = data.ends.clip(a, b) - a
    labels = {c: data.labels(c) for c in range(len(data))}
    return dataclasses.replace(data, x=data.x[a:b].clone(), y=data.y[a:b].clone(), ends=ends, reported_labels=labels)


def _deliver(record: R) -> R:
    return decode(type(record), encode(record))
