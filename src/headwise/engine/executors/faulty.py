"""Injected failures of clients and networks, reproducible from the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...records import Packed, Record, RecordError, pack, unpack
from ...seeds import seed_of
from ..client.jobs import Answer, Failure, Job, report_failure
from ..plan import Plan
from .base import Executor

HUGE = 1e9
"""the factor for a huge model, and the number of samples that a lying client claims"""


class Faulty:
    """An executor whose clients fail in training as `faults.inject` says; evaluations are not affected."""

    def __init__(self, inner: Executor, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self.workers = inner.workers
        self.states = inner.states
        self.clock = inner.clock
        self._attempts: Counter[tuple[int, int]] = Counter()
        """how often a client trained in a round: a retry may succeed"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        deadline = self._plan.experiment.faults.deadline
        absent = {"drop", "error"} if deadline is None else {"drop", "error", "slow"}
        faults = {job.client: (self._find_fault(job), job) for job in jobs}
        held: list[Answer] = []
        for fault, job in faults.values():
            if fault == "error":
                yield _fail(job, "raised", "a failure was injected")
            elif fault == "slow" and deadline is not None:
                yield _fail(job, "late", f"it took longer than {deadline:g} seconds")
        for answer in self._inner.run([job for fault, job in faults.values() if fault not in absent]):
            fault = faults[answer.client][0]
            if fault == "slow":
                held.append(answer)
            else:
                yield from _spoil_answer(answer, fault)
        yield from held

    def close(self) -> None:
        self._inner.close()

    def _find_fault(self, job: Job) -> str:
        """What goes wrong at this client now; an empty string for nothing."""
        if job.kind != "fit":
            return ""
        seed = self._plan.experiment.seed
        attempt = self._attempts[job.client, job.t]
        self._attempts[job.client, job.t] += 1
        at = _draw(seed_of(seed, "fault", job.client, job.t, attempt))
        for kind, low, high in self._plan.experiment.faults.inject.shares:
            share = low + (high - low) * _draw(seed_of(seed, "faults of a round", kind, job.t))
            if at < share:
                return kind
            at -= share
        return ""


def _draw(seed: int) -> float:
    return float(torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def _fail(job: Job, reason: str, what: str) -> Answer:
    return report_failure(job, reason, f"client {job.client} failed in round {job.t}: {what}.")


def _spoil_answer(answer: Answer, fault: str) -> Iterator[Answer]:
    """What the server receives instead of this answer."""
    if fault == "stale":
        yield replace(answer, t=answer.t - 1)
    elif fault == "samples":
        yield replace(answer, n=int(HUGE))
    elif fault in _CHANGES and answer.up is not None and answer.failure is None:
        try:
            yield replace(answer, up=_spoil_record(answer.up, fault))
        except RecordError as error:  # as where records arrive as bytes
            detail = f"client {answer.client} did not send a valid record in round {answer.t}: {error}."
            yield replace(answer, up=None, failure=Failure(fault, detail))
    else:
        yield answer
        if fault == "twice":
            yield answer


def _not_a_number(t: Tensor, value: float) -> Tensor:
    spoilt = t.clone()
    spoilt.view(-1)[:1] = value
    return spoilt


_CHANGES = {
    "nan": lambda t: _not_a_number(t, torch.nan),
    "inf": lambda t: _not_a_number(t, torch.inf),
    "shapes": lambda t: t.unsqueeze(-1),
    "dtypes": lambda t: t.half(),
    "norm": lambda t: t * HUGE,
    "names": lambda t: t,
}


def _spoil_record(up: Record, fault: str) -> Record:
    """The record with its first floating-point tensor spoilt; unchanged if it has none."""
    tensors, scalars = pack(up)
    name = next((k for k, t in tensors.items() if t.is_floating_point()), None)
    if name is None:
        return up
    renamed = f"{name}~" if fault == "names" else name
    spoilt = {renamed if k == name else k: _CHANGES[fault](t) if k == name else t for k, t in tensors.items()}
    return unpack(type(up), Packed(spoilt, scalars))
