"""Clients spread over processes, each with one thread; the same bits as `Serial`, whatever the number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...averaging import Shared
from ...errors import ClientError
from ...method import record_types
from ...records import Nothing, Record, decode, encode
from ..plan import Plan
from ..state import ClientState, decode_state, encode_state
from ..worker import Answer, Job, handle

ATTEMPTS = 3  # a worker that was killed takes its clients with it; they are run again this often


class Pool:
    """Persistent worker processes; records cross to them as bytes, client states are kept here."""

    def __init__(
        self, plan: Plan, rebuild: Callable[[], Plan], workers: int, states: Mapping[int, ClientState] | None = None
    ) -> None:
        self.states, self._types = dict(states or {}), record_types(type(plan.method))
        self._rebuild, self._workers = rebuild, min(workers, len(plan.data))
        self._pool = self._open()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs side by side; those of a worker that died are done again."""
        left = {job.client: job for job in jobs}
        for attempt in range(ATTEMPTS):
            try:
                for future in as_completed(self._submit(left.values())):
                    reply = future.result()
                    yield self._receive(reply)
                    del left[reply.answer.client]
                return
            except BrokenProcessPool as error:
                if attempt == ATTEMPTS - 1:
                    raise ClientError(
                        f"a worker died {ATTEMPTS} times at one of the clients {sorted(left)}."
                    ) from error
                self.close()
                self._pool = self._open()

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(cancel_futures=True)

    def _open(self) -> ProcessPoolExecutor:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, mp_context=spawn, initializer=_begin, initargs=(self._rebuild,))

    def _submit(self, jobs: Iterable[Job]) -> list[Future[_Reply]]:
        encoded: dict[int, bytes] = {}  # the same record for many clients is encoded once
        futures: list[Future[_Reply]] = []
        for job in jobs:
            if (key := id(job.down)) not in encoded:
                encoded[key] = encode(job.down)
            state = self.states.get(job.client)
            plain = replace(job, down=Nothing())
            futures.append(self._pool.submit(_work, plain, encoded[key], encode_state(state) if state else None))
        return futures

    def _receive(self, reply: _Reply) -> Answer:
        answer = reply.answer
        if reply.state is not None:
            self.states[answer.client] = decode_state(self._types.client, reply.state)
        return answer if reply.up is None else replace(answer, up=decode(self._types.up, reply.up))


class _Reply(NamedTuple):
    answer: Answer
    up: bytes | None
    state: bytes | None


_here: dict[str, Any] = {}
"""what a worker process has built for its run"""


def _begin(rebuild: Callable[[], Plan]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's: it lets the round finish
    threading.Thread(target=_end_with_driver, daemon=True).start()
    torch.set_num_threads(1)
    plan = rebuild()
    _here.update(plan=plan, types=record_types(type(plan.method)))


def _end_with_driver() -> None:
    """A driver that is killed can't end its workers, and they would wait for it for ever."""
    driver = multiprocessing.parent_process()
    assert driver is not None  # this runs in a worker
    driver.join()
    os._exit(1)


def _work(job: Job, down: bytes, state: bytes | None) -> _Reply:
    cls: type[Record] = Shared if job.task == "global" else _here["types"].down
    before = decode_state(_here["types"].client, state) if state is not None else None
    answer, after = handle(_here["plan"], replace(job, down=decode(cls, down)), before)
    up = None if answer.up is None else encode(answer.up)
    return _Reply(replace(answer, up=None), up, encode_state(after) if after else None)
