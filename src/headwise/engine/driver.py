"""The only round loop. Who, when and in which order; never what: that is the method's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..method import Reply
from ..records import Record, nbytes, nbytes_by_field
from .evaluation import Evaluation
from .events import Event, Observer, Progress, Reason, RoundEnded, RoundStarted, RunEnded, RunStarted
from .executors.base import Executor, collect
from .plan import Plan
from .sampling import sample
from .server import ServerBench
from .worker import Answer, Job


def drive(
    plan: Plan,
    executor: Executor,
    observers: Iterable[Observer] = (),
    *,
    start: Progress | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Reason:
    """Run the rounds that are left, and say why it ended."""
    watching, begun = tuple(observers), time.monotonic()

    def tell(event: Event) -> None:
        for observe in watching:
            observe(event)

    now = start or Progress(0, plan.method.server_init(ServerBench(plan, 0)), {"last": {}, "best": None, "waited": 0})
    tell(RunStarted(plan.rounds, len(plan.data), now.t))
    reason: Reason = "finished"
    first = now.t
    while now.t < plan.rounds:
        spent = time.monotonic() - begun if now.t > first else 0.0  # however small the budget, a session does a round
        if early := _stops(plan, now, spent, interrupted):
            reason = early
            break
        ended = _round(plan, executor, now, tell)
        tell(ended)
        now = ended.progress
    tell(RunEnded(reason))
    return reason


def _stops(plan: Plan, now: Progress, spent: float, interrupted: Callable[[], bool]) -> Reason | None:
    if interrupted():
        return "interrupted"
    if plan.stop.patience is not None and now.carry["waited"] >= plan.stop.patience:
        return "patience"
    if plan.stop.budget is not None and spent >= plan.stop.budget:
        return "budget"
    return None


def _round(plan: Plan, executor: Executor, now: Progress, tell: Observer) -> RoundEnded:
    """One round: draw clients, send, train, aggregate in client order, evaluate."""
    t, begun = now.t + 1, time.perf_counter()
    chosen = sample(plan.sampling, len(plan.data), plan.seed, t)
    tell(RoundStarted(t, tuple(chosen)))
    central = ServerBench(plan, t)
    downs = {c: plan.method.broadcast(now.server, c, central) for c in chosen}
    # post is measured in every round, or a client's last score would not be that of its last training
    jobs = [Job("fit", c, t, downs[c], measure="post" in plan.evaluate.moments) for c in chosen]
    answers = collect(executor, jobs, tell)
    idle = _idle(plan, executor, now.server, t, chosen, tell)
    trained = time.perf_counter()
    server = plan.method.aggregate(now.server, [Reply(c, _up(a), a.n) for c, a in answers.items()], central)

    evaluation = Evaluation(plan, executor, tell, server, t, answers, now.carry["last"])
    traffic = {c: {"bytes_up": nbytes(_up(a)), "bytes_down": nbytes(downs[c])} for c, a in answers.items()}
    row: dict[str, Any] = {"round": t, "clients": chosen}
    row |= {way: sum(sent[way] for sent in traffic.values()) for way in ("bytes_up", "bytes_down")}
    row["fields"] = {"up": _by_field(_up(a) for a in answers.values()), "down": _by_field(downs.values())}
    row |= {"bytes_idle": sum(idle.values())} if idle else {}
    if t % plan.evaluate.every == 0 or t == plan.rounds:
        row |= evaluation.measure()
    row["samples"] = sum(a.samples for a in answers.values())
    row["seconds"] = {"train": trained - begun, "round": time.perf_counter() - begun}
    carry = {"last": evaluation.last, **_patience(now.carry, row)}
    return RoundEnded(row, evaluation.lines(traffic), Progress(t, server, carry), executor.states, (*chosen, *idle))


def _idle(plan: Plan, executor: Executor, server: Record, t: int, chosen: list[int], tell: Observer) -> dict[int, int]:
    """Methods whose clients also learn from downloads when they are not drawn; the bytes sent to each of them."""
    if not plan.method.updates_idle():
        return {}
    central = ServerBench(plan, t)
    rest = [c for c in range(len(plan.data)) if c not in set(chosen)]
    jobs = [Job("idle", c, t, plan.method.broadcast(server, c, central)) for c in rest]
    collect(executor, jobs, tell)
    return {job.client: nbytes(job.down) for job in jobs}


def _up(answer: Answer) -> Record:
    assert answer.up is not None  # training always answers with a message
    return answer.up


def _by_field(messages: Iterable[Record]) -> dict[str, int]:
    """The bytes of these messages together, by field."""
    total: Counter[str] = Counter()
    for message in messages:
        total.update(nbytes_by_field(message))
    return dict(total)


def _patience(carry: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The best evaluation so far and how many there were since; on validation samples where there are any."""
    name = next((m for m in ("pre", "stale", "global") if m in row), None)
    if name is None:
        return {"best": carry["best"], "waited": carry["waited"]}
    value = row[name].get("val_accuracy", row[name].get("accuracy", 0.0))
    if carry["best"] is None or value > carry["best"]:
        return {"best": value, "waited": 0}
    return {"best": carry["best"], "waited": carry["waited"] + 1}
