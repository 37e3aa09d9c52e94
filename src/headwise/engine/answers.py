"""The server's end of a round: sends the jobs, checks the answers, and decides when the run can't continue.

Nothing here trusts an answer: it may come twice, late or for another round, or hold anything its type allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract.method import record_types
from ..errors import ClientError
from ..params import Params
from ..records import DTYPES, Nothing, Record, fields_of, pack
from ..settings.options import Faults
from .client.jobs import Answer, Failure, Job, answer_type
from .events import ClientDone, ClientFailed, Observer
from .executors.base import Executor, collect
from .plan import Plan

RETRIED = ("no answer", "raised")
"""failures that leave a client's state unchanged, so its job can be sent again"""

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class Outcome(NamedTuple):
    answers: dict[int, Answer]
    """those that count, in client order"""
    failed: dict[str, list[int]]
    """the clients that failed, by reason"""


def train_clients(plan: Plan, executor: Executor, jobs: Sequence[Job], tell: Observer) -> Outcome:
    """Train these clients; `faults.on_failure` decides what a failure leads to."""
    if not jobs:  # everyone drawn is absent, or a trace leaves the round empty
        return Outcome({}, {})
    faults = plan.experiment.faults
    t = jobs[0].t
    policy = faults.reaction
    answers: dict[int, Answer] = {}
    failed: list[tuple[int, Failure]] = []

    def fail(client: int, failure: Failure) -> None:
        tell(ClientFailed(t, client, "fit", *failure))
        if policy == "stop":
            raise ClientError(failure.detail)
        failed.append((client, failure))

    left = list(jobs)
    for _ in range(1 + faults.retries if policy == "retry" else 1):
        failed = [(c, failure) for c, failure in failed if failure.reason not in RETRIED]
        _collect_answers(executor, left, answers, fail, tell)
        hopeless = {c for c, failure in failed if failure.reason not in RETRIED}
        left = [job for job in left if job.client not in answers and job.client not in hopeless]
        if not left:
            break
    if policy != "stop":
        downs = {job.client: job.down for job in jobs}
        for client, failure in judge(plan, answers, downs):
            del answers[client]
            fail(client, failure)
    _check_enough(faults, t, len(jobs), answers, failed)
    return Outcome(dict(sorted(answers.items())), _group_by_reason(failed))


def take_census(plan: Plan, executor: Executor, tell: Observer) -> dict[int, Answer]:
    """Send every client that takes part the method's question; the answers that count, in client order."""
    jobs = [Job("census", c, 0, Nothing(), measure=False) for c in plan.clients]
    answers = collect(executor, jobs, tell)
    for client, answer in list(answers.items()):
        if wrong := _find_fault(plan, answer):
            failure = Failure(wrong[0], f"client {client} sent {wrong[1]} in the census.")
            tell(ClientFailed(0, client, "census", *failure))
            if plan.experiment.faults.reaction == "stop":
                raise ClientError(failure.detail)
            del answers[client]
    _check_enough(plan.experiment.faults, 0, len(jobs), answers, [])
    return answers


def _collect_answers(
    executor: Executor,
    jobs: Sequence[Job],
    answers: dict[int, Answer],
    fail: Callable[[int, Failure], None],
    tell: Observer,
) -> None:
    t = jobs[0].t
    answered = set[int]()
    expected = {job.client for job in jobs}
    for a in executor.run(jobs):
        who = f"client {a.client}"
        if a.client not in expected:
            fail(a.client, Failure("unasked", f"{who} answered in round {t}, but was sent no job."))
        elif a.client in answered:
            fail(a.client, Failure("twice", f"{who} answered twice in round {t}: the first answer counts."))
        elif a.kind != "fit" or a.t != t:
            fail(a.client, Failure("another round", f"{who} answered in round {t} for {a.kind} in round {a.t}."))
        elif a.failure:
            fail(a.client, a.failure)
        else:
            answers[a.client] = a
            tell(ClientDone(t, a.client, a.kind, a.samples))
        answered.add(a.client)
    for c in sorted(expected - answered):
        fail(c, Failure("no answer", f"client {c} gave no answer in round {t}."))


def _check_enough(
    faults: Faults, t: int, clients: int, answers: Mapping[int, Answer], failed: list[tuple[int, Failure]]
) -> None:
    least = min(faults.min_replies, clients)
    if len(answers) < least:
        reasons = ", ".join(f"{reason}: {len(who)}" for reason, who in _group_by_reason(failed).items())
        raise ClientError(f"round {t} has {len(answers)} replies, but faults.min_replies is {least} ({reasons}).")


def _group_by_reason(failed: Iterable[tuple[int, Failure]]) -> dict[str, list[int]]:
    by_reason: dict[str, list[int]] = {}
    for client, failure in sorted(failed):
        by_reason.setdefault(failure.reason, []).append(client)
    return by_reason


def judge(plan: Plan, answers: Mapping[int, Answer], downs: Mapping[int, Record]) -> list[tuple[int, Failure]]:
    """The answers that must not be aggregated, each with the reason."""
    wrong = {c: why for c, a in answers.items() if (why := _find_fault(plan, a))}
    if plan.method.fixed_layout:  # then it must match what was sent
        wrong |= _compare_layouts(plan, {c: a for c, a in answers.items() if c not in wrong}, downs)
    return [
        (c, Failure(reason, f"{plan.data.describe(c)} sent {what} in round {answers[c].t}."))
        for c, (reason, what) in sorted(wrong.items())
    ]


def _find_fault(plan: Plan, answer: Answer) -> tuple[str, str] | None:
    """What is wrong with an answer by itself: a reason to count by, and words for the message."""
    up = answer.up
    faults = plan.experiment.faults
    if up is None or type(up) is not answer_type(answer.kind, record_types(type(plan.method))):
        return "names", f"a {type(up).__name__}"
    if type(answer.n) is not int or not 0 <= answer.n <= faults.max_samples:
        return "samples", f"{answer.n!r} as its number of samples, which must be from 0 to {faults.max_samples}"
    tensors, scalars = pack(up)
    for name, t in tensors.items():
        if t.dtype not in DTYPES:
            return "dtypes", f"{name} of type {t.dtype}, which a message can't hold"
    numbers = {k: t for k, t in tensors.items() if t.is_floating_point()}
    numbers |= {k: torch.tensor(v) for k, v in scalars.items() if isinstance(v, float)}
    for name, t in numbers.items():
        if not bool(t.isfinite().all()):
            return "not finite", f"values in {name} that are not finite"
    norm = sum(float(t.double().square().sum()) for t in numbers.values()) ** 0.5
    if faults.max_norm is not None and not norm <= faults.max_norm:
        return "norm", f"values of norm {norm:g}, but faults.max_norm is {faults.max_norm:g}"
    return None


def _compare_layouts(
    plan: Plan, answers: Mapping[int, Answer], downs: Mapping[int, Record]
) -> dict[int, tuple[str, str]]:
    """Fields whose layout differs from what was sent under that name or, if nothing was, from most other clients'."""
    wrong: dict[int, tuple[str, str]] = {}
    types = record_types(type(plan.method))
    for name, kind in fields_of(types.up).items():
        layouts = {c: layout for c, a in answers.items() if (layout := _layout(getattr(a.up, name))) is not None}
        common = _find_majority(layouts.values())
        returned = kind is Params and fields_of(types.down).get(name) is Params
        for c, layout in layouts.items():
            expected = _layout(getattr(downs[c], name)) if returned else common
            if c not in wrong and (why := _find_difference(layout, expected)):
                wrong[c] = why[0], f"{name} with {why[1]}"
    return wrong


def _layout(value: object) -> Layout | None:
    """Types and shapes by name. A single tensor's first dimension is left out: it may count the client's classes."""
    if isinstance(value, Params):
        return {k: (t.dtype, tuple(t.shape)) for k, t in value.items()}
    return {"": (value.dtype, tuple(value.shape[1:]))} if isinstance(value, Tensor) else None


def _find_majority(layouts: Iterable[Layout]) -> Layout | None:
    """The most common layout; None on a tie."""
    counts = Counter(tuple(sorted(layout.items(), key=lambda item: item[0])) for layout in layouts)
    (most, times), *rest = [*counts.most_common(2), ((), 0)]
    return dict(most) if all(times > count for _, count in rest) else None


def _find_difference(layout: Layout, expected: Layout | None) -> tuple[str, str] | None:
    if expected is None:
        return "at odds", "a layout that differs from others, none of which has a majority"
    if layout.keys() != expected.keys():
        return "names", f"other names ({', '.join(sorted(layout.keys() ^ expected.keys())[:3])})"
    for name, (dtype, shape) in layout.items():
        if dtype != expected[name][0]:
            return "dtypes", f"{name or 'values'} of type {dtype} and not {expected[name][0]}"
        if shape != expected[name][1]:
            return "shapes", f"{name or 'values'} of shape {shape} and not {expected[name][1]}"
    return None
