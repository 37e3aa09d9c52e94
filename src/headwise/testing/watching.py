"""Wrappers of methods and executors that let a check see what passes through them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch

from ..contract import calls
from ..contract.benches import Local, Predictor
from ..contract.method import Method, record_types
from ..data.federated import Clients
from ..engine.client.jobs import Answer, Job, handle
from ..engine.client.state import decode_state
from ..engine.executors.local import Serial
from ..engine.plan import Plan
from ..records import R, Record, decode, encode
from .toy import FEATURES, AnyMethod, Recorder, play, remember, toy_plan


def _forward(name: str) -> Callable[..., Any]:
    """A function of `Watched` that calls the method's own, and compares its records before and after."""
    names = list(inspect.signature(getattr(Method, name)).parameters)[1:]

    def forward(watched: Any, *arguments: Any) -> Any:
        given = dict(zip(names, arguments, strict=True))
        records = {k: v for k, v in given.items() if isinstance(v, Record)}
        if name == "aggregate":
            records |= {f"reply of client {r.client}": r.up for r in given["replies"]}
        before = {k: encode(r) for k, r in records.items()}
        checked = getattr(calls, name, None)
        value = checked(watched.method, *arguments) if checked else getattr(watched.method, name)(*arguments)
        changed = [k for k, r in records.items() if encode(r) != before[k]]
        watched.complaints += [f"{name} changed the record {k!r} in place" for k in changed]
        if name == "local_update":
            watched.complaints += _find_nonsense("Update.model", value.model, given["local"])
        if name == "personalize":
            watched.complaints += _find_nonsense(name, value, given["local"])
        return value

    return forward


def _find_nonsense(who: str, model: Predictor, local: Local) -> list[str]:
    """What is wrong unless the predictor gives each sample one finite score per class."""
    if isinstance(model, torch.nn.Module):
        model.eval()
    x = torch.linspace(-2, 2, 3 * FEATURES).view(3, FEATURES)
    with torch.no_grad():
        z = model(x)
    if tuple(z.shape) != (3, local.classes):
        return [f"{who} gives scores of shape {tuple(z.shape)} for (3, {local.classes})"]
    return [] if z.isfinite().all() else [f"{who} gives scores that are not finite"]


class Watched(Method[Record, Record, Record, Record]):
    """Forwards to a method, and notes in `complaints` when it changes its arguments or returns nonsense."""

    fixed_layout: ClassVar[bool] = False  # what is sent back is checked for the method itself

    def __new__(cls, method: AnyMethod) -> Watched:
        """Of a class with the method's census: the engine asks the class for it, not the instance."""
        return object.__new__(type(cls.__name__, (cls,), {"census": method.census}))

    def __init__(self, method: AnyMethod) -> None:
        self.method = method
        self.complaints: list[str] = []

    answer_census = _forward("answer_census")
    use_census = _forward("use_census")
    server_init = _forward("server_init")
    broadcast = _forward("broadcast")
    aggregate = _forward("aggregate")
    updates_idle = _forward("updates_idle")
    global_model = _forward("global_model")
    client_init = _forward("client_init")
    local_update = _forward("local_update")
    idle_update = _forward("idle_update")
    personalize = _forward("personalize")


class Training(NamedTuple):
    job: Job
    answer: Answer
    before: Record | None
    after: Record


class Listening(Serial):
    """A serial executor that keeps every training's messages and states."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.trainings: list[Training] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            before = self.states.get(job.client)
            for answer in super().run([job]):
                if job.kind == "fit":
                    me = before.me if before else None
                    self.trainings.append(Training(job, answer, me, self.states[job.client].me))
                yield answer


class Recording(NamedTuple):
    plan: Plan
    recorder: Recorder
    trainings: list[Training]


def record_messages(method: AnyMethod) -> Recording:
    """Two rounds in which all clients take part: in the second, states and downloads come from training."""

    def record() -> Recording:
        plan = toy_plan(method, rounds=2, moments=())
        executor = Listening(plan)
        return Recording(plan, play(plan, executor), executor.trainings)

    return remember("messages", method, record)


def up_of(training: Training) -> Record:
    return training.answer.message


class Backwards(Serial):
    """Clients work one by one, and answer, in reverse order."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        yield from super().run(list(jobs)[::-1])


class Apart(Serial):
    """Every client at its own site: no other samples in memory, and everything it is sent goes through bytes."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        me = record_types(type(self.plan.method)).client
        for job in jobs:
            plan = dataclasses.replace(self.plan, data=_keep_only(self.plan.data, job.client))
            state = self.states.encode(job.client)
            before = None if state is None else decode_state(me, state)
            answer, after = handle(plan, dataclasses.replace(job, down=_deliver(job.down)), before, self.clock)
            if after is not None:
                self.states[job.client] = after
            yield dataclasses.replace(answer, up=None if answer.up is None else _deliver(answer.up))


def _keep_only(data: Clients, client: int) -> Clients:
    """The clients, with a copy of this one's samples and none for the others."""
    first = data.start(client)
    last = data.ends[client][-1]
    ends = data.ends.clip(first, last) - first
    labels = {c: data.labels(c) for c in range(len(data))}
    weight = None if data.weight is None else data.weight[first:last].clone()
    x = data.x[first:last].clone()
    y = data.y[first:last].clone()
    return dataclasses.replace(data, x=x, y=y, ends=ends, reported_labels=labels, weight=weight)


def _deliver(record: R) -> R:
    return decode(type(record), encode(record))
