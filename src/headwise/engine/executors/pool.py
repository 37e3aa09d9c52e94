"""Clients spread over single-threaded processes; the same bits as `Serial`, whatever the number of workers."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from ...contract.method import RecordTypes, record_types
from ...data.federated import Clients
from ...errors import ClientError
from ...records import Nothing, Record, decode, encode
from ..client.jobs import Answer, Job, answer_type, handle, message_type
from ..client.state import States, encode_state, load_state
from ..host import Clock, device_of, keep_freed_memory, peak_memory
from ..plan import Plan
from .base import Setup, balance, states_of
from .crew import Crew, Work, WorkerLostError
from .shelf import Handle, Shelf, open_shared

ATTEMPTS = 3  # how often jobs are tried whose worker was killed


class Pool:
    """Persistent worker processes. Shared memory holds the data once, and each broadcast once."""

    def __init__(
        self, plan: Plan, rebuild: Callable[[Clients], Plan], workers: int, states: States | None = None
    ) -> None:
        self._types = record_types(type(plan.method))
        self.states = states_of(plan, states)
        self.workers = min(workers, len(plan.data))
        self.clock = Clock()
        self._plan = plan
        self._shelf = Shelf.make(sum(t.numel() * t.element_size() for t in list_tensors(plan.data).values()))
        data = _SharedData.put_on(self._shelf, plan.data)
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        self._crew = Crew(self.workers, partial(_begin, rebuild, self._shelf.folder, data))

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs in parallel; those of a worker that died are retried."""
        left = {job.client: job for job in jobs}
        sent: dict[tuple[str, int], Handle] = {}
        try:
            for attempt in range(ATTEMPTS):
                try:
                    for reply in self._crew.run(self._tasks(list(left.values()), sent)):
                        for answer in self._receive(reply):
                            del left[answer.client]
                            yield answer
                    return
                except WorkerLostError as error:
                    if attempt == ATTEMPTS - 1 and self._plan.experiment.faults.reaction == "stop":
                        who = f"{ATTEMPTS} times at one of the clients {sorted(left)}"
                        raise ClientError(f"a worker died {who}.") from error
                    self.clock.memory.clear()  # some of these processes are gone
        finally:
            for handle in sent.values():
                self._shelf.drop(handle)

    def close(self) -> None:
        self._crew.close()
        self._shelf.remove()

    def _tasks(self, jobs: Sequence[Job], sent: dict[tuple[str, int], Handle]) -> list[list[_PackedJob]]:
        """Tasks for the workers; `sent` collects what was put on the shelf for them."""
        begun = time.perf_counter()
        tasks: list[list[_PackedJob]] = []
        for group in balance(jobs, self._plan, self.workers):
            packed: list[_PackedJob] = []
            for job in group:
                down = ("down", id(job.down))
                own = ("state", job.client)
                if down not in sent:  # the same record for many clients is written once
                    sent[down] = self._shelf.put(encode(job.down))
                if own not in sent and (state := self.states.encode(job.client)) is not None:
                    sent[own] = self._shelf.put(state)
                packed.append(_PackedJob(replace(job, down=Nothing()), sent[down], sent.get(own)))
            tasks.append(packed)
        self.clock.add({"transport": time.perf_counter() - begun})
        return tasks

    def _receive(self, reply: _Finished) -> Iterator[Answer]:
        self.clock.add(reply.seconds)
        self.clock.memory[reply.process] = reply.memory
        for answer, up, state in reply.answers:
            if state is not None:
                self.states[answer.client] = self._shelf.take(state)
            yield (
                answer
                if up is None
                else replace(answer, up=decode(answer_type(answer.kind, self._types), self._shelf.take(up)))
            )


def make(setup: Setup) -> Pool:
    return Pool(setup.plan, setup.rebuild, setup.workers, setup.states)


class _PackedJob(NamedTuple):
    job: Job
    down: Handle
    state: Handle | None


class _Finished(NamedTuple):
    answers: list[tuple[Answer, Handle | None, Handle | None]]
    """each with its message up and its new state"""
    seconds: dict[str, float]
    process: int
    memory: int


class _SharedData(NamedTuple):
    """The clients' samples, as another process opens them from the shelf."""

    bare: Clients
    layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]

    @classmethod
    def put_on(cls, shelf: Shelf, data: Clients) -> _SharedData:
        tensors = list_tensors(data)
        for name, t in tensors.items():
            shelf.share(name, t)
        layouts = {name: (tuple(t.shape), t.stride(), t.dtype) for name, t in tensors.items()}
        return cls(replace(data, **dict.fromkeys(tensors, torch.empty(0))), layouts)

    def open(self, folder: Path) -> Clients:
        return replace(self.bare, **{name: open_shared(folder / name, *each) for name, each in self.layouts.items()})


def list_tensors(data: Clients) -> dict[str, torch.Tensor]:
    """The samples, their targets and, where there are any, their weights."""
    return {"x": data.x, "y": data.y} | ({} if data.weight is None else {"weight": data.weight})


class _Process(NamedTuple):
    """What a worker process holds for its run."""

    plan: Plan
    types: RecordTypes
    shelf: Shelf
    downs: dict[str, Record]
    """the last message read from a file: the next client often gets the same one"""


def _begin(rebuild: Callable[[Clients], Plan], folder: Path, data: _SharedData, number: int) -> Work:
    torch.set_num_threads(1)
    keep_freed_memory()
    plan = rebuild(data.open(folder))
    plan = replace(plan, device=device_of(number, plan.device))
    gc.freeze()  # all of this stays: the collector need not scan it in every round
    return partial(_work, _Process(plan, record_types(type(plan.method)), Shelf(folder), {}))


def _work(here: _Process, packed: Sequence[_PackedJob]) -> _Finished:
    plan, types, shelf, _ = here
    clock = Clock()
    answers: list[tuple[Answer, Handle | None, Handle | None]] = []
    for each in packed:
        clock.to("transport")
        client = each.job.client
        before = None if each.state is None else load_state(types.client, client, shelf.look(each.state))
        job = replace(each.job, down=_take_download(here, each))
        answer, after = handle(plan, job, before, clock)
        clock.to("transport")
        up = None if answer.up is None else shelf.put(encode(answer.up))
        state = None if after is None else shelf.put(encode_state(after))
        answers.append((replace(answer, up=None), up, state))
    clock.stop()
    return _Finished(answers, dict(clock.seconds), os.getpid(), peak_memory())


def _take_download(here: _Process, packed: _PackedJob) -> Record:
    cls = message_type(packed.job.kind, here.types)
    if isinstance(packed.down, bytes):
        return decode(cls, packed.down)
    if packed.down not in here.downs:
        here.downs.clear()
        here.downs[packed.down] = decode(cls, here.shelf.look(packed.down))
    return here.downs[packed.down]
