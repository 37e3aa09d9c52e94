"""The only round loop. It decides who, when and in which order; the method decides what."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from ..contract.calls import aggregate, server_init
from ..contract.method import Reply, record_types
from ..errors import HeadwiseError, ServerError
from ..log.metrics import Metric
from ..log.schema import ENDS, JUDGED, Measured, Reason, Round, Seconds, selection_value
from ..memory import settle
from ..records import Nothing, Record, map_tensors, nbytes, nbytes_by_field
from .answers import take_census, train_clients
from .client.jobs import Job, describe_failure
from .evaluation import Evaluation
from .events import (
    Event,
    NewClients,
    Observer,
    Progress,
    RoundEnded,
    RoundStarted,
    RunEnded,
    RunStarted,
    StartMeasured,
)
from .executors.base import Executor, collect
from .host import Clock, peak_memory
from .joining import join_all
from .plan import Plan
from .sampling import participants
from .server_bench import ServerBench, broadcasts


def drive(
    plan: Plan,
    executor: Executor,
    observers: Iterable[Observer] = (),
    *,
    start: Progress | None = None,
    rounds: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Reason:
    """Run the remaining rounds, or at most `rounds` of them; return why the run ended."""
    watching = tuple(observers)
    begun = time.monotonic()

    def tell(event: Event) -> None:
        for observe in watching:
            observe(event)

    fresh = start is None
    if start is None:
        with _explain_server_errors(plan, 0, "server_init"):
            start = Progress(0, map_tensors(server_init(plan.method, ServerBench(plan, 0)), settle), {})
    now = start
    tell(RunStarted(plan.experiment.rounds, len(plan.clients), now.t, plan.metric))
    now, census_bytes = _census(plan, executor, now, tell)
    if fresh and plan.experiment.evaluate.start and plan.experiment.evaluate.moments:
        tell(_measure_start(plan, executor, now, tell))
    reason: Reason = "finished"
    first = now.t
    stored = 0.0
    while now.t < plan.experiment.rounds:
        spent = time.monotonic() - begun if now.t > first else 0.0  # a session does one round even without a budget
        stop = interrupted() or (rounds is not None and now.t - first >= rounds)
        if early := "interrupted" if stop else _find_reason_to_stop(plan, now, spent):
            reason = early
            break
        ended = _run_round(plan, executor, now, tell, stored)
        if census_bytes:
            ended.row["bytes_census"] = census_bytes
            census_bytes = 0
        stored = time.perf_counter()
        tell(ended)
        stored = time.perf_counter() - stored
        now = ended.progress
    if plan.newcomers and ENDS[reason]:
        tell(NewClients(join_all(plan, now.server, now.t)))
    tell(RunEnded(reason))
    return reason


def _census(plan: Plan, executor: Executor, now: Progress, tell: Observer) -> tuple[Progress, int]:
    """Before the first round, ask every client the method's question, if it has one; also the answers' bytes."""
    if now.t or record_types(type(plan.method)).census is Nothing:
        return now, 0
    answers = take_census(plan, executor, tell)
    replies = [Reply(c, a.message, a.n) for c, a in answers.items()]
    with _explain_server_errors(plan, 0, "use_census"):
        server = map_tensors(plan.method.use_census(now.server, replies, ServerBench(plan, 0, "census")), settle)
    return replace(now, server=server), sum(nbytes(reply.up) for reply in replies)


def _find_reason_to_stop(plan: Plan, now: Progress, spent: float) -> Reason | None:
    if plan.experiment.stop.patience is not None and now.waited >= plan.experiment.stop.patience:
        return "patience"
    if plan.experiment.stop.budget is not None and spent >= plan.experiment.stop.budget:
        return "budget"
    return None


def _measure_start(plan: Plan, executor: Executor, now: Progress, tell: Observer) -> StartMeasured:
    """Measure the clients before any training, as round 0; this has no effect on the rounds."""
    clock = Clock("evaluate")
    before = dict(executor.clock.seconds)
    evaluation = Evaluation(plan, executor, tell, now.server, 0, {}, {})
    with _explain_server_errors(plan, 0, "broadcast"):
        measured = evaluation.measure()
    measured.pop("post", None)  # nobody has trained
    seconds = _seconds(clock, executor, before, 0.0)
    row: Round = {"round": 0, "bytes_up": 0, "bytes_down": 0, **measured, "seconds": seconds}
    return StartMeasured(row, evaluation.lines({}))


def _run_round(plan: Plan, executor: Executor, now: Progress, tell: Observer, stored: float) -> RoundEnded:
    """One round: draw clients, send, train, aggregate in client order, evaluate."""
    t = now.t + 1
    clock = Clock("server")
    before = dict(executor.clock.seconds)
    chosen = participants(plan, t)
    tell(RoundStarted(t, tuple(chosen)))
    central = ServerBench(plan, t)
    with _explain_server_errors(plan, t, "broadcast"):
        downs = broadcasts(plan, now.server, chosen, central)
    clock.to("train")
    due = t % plan.experiment.evaluate.every == 0 or t == plan.experiment.rounds
    measured_now = _find_measured(plan, t, chosen, due)
    jobs = [Job("fit", c, t, downs[c], measure=c in measured_now) for c in chosen]
    answers, failed = train_clients(plan, executor, jobs, tell)
    idle = _update_idle(plan, executor, now.server, t, chosen, tell)
    clock.to("server")
    replies = [Reply(c, a.message, a.n) for c, a in answers.items()]
    with _explain_server_errors(plan, t, "aggregate"):
        # laid out as a checkpoint would restore it: a resumed run must continue from the same bits
        server = map_tensors(aggregate(plan.method, now.server, replies, central), settle) if replies else now.server
    clock.to("evaluate")
    evaluation = Evaluation(plan, executor, tell, server, t, answers, now.last, measured_now)
    weights = {id(down): nbytes_by_field(down) for down in {id(d): d for d in downs.values()}.values()}
    sent = {c: {"up": nbytes_by_field(a.message), "down": weights[id(downs[c])]} for c, a in answers.items()}
    traffic = {c: {f"bytes_{way}": sum(fields.values()) for way, fields in ways.items()} for c, ways in sent.items()}
    measured = evaluation.measure() if due else Measured()
    up = _sum_fields(ways["up"] for ways in sent.values())
    down = _sum_fields(ways["down"] for ways in sent.values())
    row: Round = {
        "round": t,
        "clients": chosen,
        "bytes_up": sum(up.values()),
        "bytes_down": sum(down.values()),
        "fields": {"up": up, "down": down},
        **measured,
        "samples": sum(a.samples for a in answers.values()),
        "seconds": _seconds(clock, executor, before, stored),
        "memory": peak_memory() + sum(executor.clock.memory.values()),
    }
    if flops := sum(a.flops for a in answers.values()):
        row["gflop"] = flops / 1e9
    if idle:
        row["bytes_idle"] = sum(idle.values())
    if failed:
        row["failed"] = failed
    progress = Progress(t, server, evaluation.last, *_update_patience(now, row, plan.metric))
    return RoundEnded(row, evaluation.lines(traffic), progress, executor.states, (*chosen, *idle))


def _find_measured(plan: Plan, t: int, chosen: Sequence[int], due: bool) -> Set[int]:
    """The participants that are measured after training: between evaluations, only those that do not train again in
    the next round, since `stale` needs each client's score after its last training.
    """
    if "post" not in plan.experiment.evaluate.moments:
        return set()
    certain = plan.experiment.faults.reaction == "stop"  # or a client may fail in the next round
    return {*chosen} - {*(participants(plan, t + 1) if certain and not due else ())}


@contextmanager
def _explain_server_errors(plan: Plan, t: int, phase: str) -> Iterator[None]:
    """Turn any exception from a method's server half into one sentence, as for its clients."""
    try:
        yield
    except HeadwiseError:
        raise
    except (Exception, SystemExit) as error:
        raise ServerError(describe_failure(plan, error, "the server", t, phase)) from error


def _update_idle(
    plan: Plan, executor: Executor, server: Record, t: int, chosen: list[int], tell: Observer
) -> dict[int, int]:
    """Update clients that were not drawn, for methods that do so; return the bytes sent to each of them."""
    if not plan.method.updates_idle():
        return {}
    rest = [c for c in plan.clients if c not in set(chosen)]
    jobs = [Job("idle", c, t, down) for c, down in broadcasts(plan, server, rest, ServerBench(plan, t)).items()]
    collect(executor, jobs, tell)
    return {job.client: nbytes(job.down) for job in jobs}


def _sum_fields(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of each field, without those that are always zero."""
    total = Counter[str]()
    for fields in counts:
        total.update({name: n for name, n in fields.items() if n})
    return dict(total)


def _update_patience(now: Progress, row: Round, main: Metric) -> tuple[float | None, int]:
    """The best evaluation so far, and how many came after it; on validation samples where there are any."""
    scores = next((row.get(m) for m in JUDGED if m in row), None)
    if scores is None:
        return now.best, now.waited
    value = selection_value(scores, main)
    if math.isfinite(value) and (now.best is None or main.gain(value, now.best) > 0):
        return value, 0
    return now.best, now.waited + 1


def _seconds(clock: Clock, executor: Executor, before: Mapping[str, float], stored: float) -> Seconds:
    """Seconds of the round, of its phases, and of all workers together since `before`; `idle` is the rest."""
    clock.stop()
    spent = {k: v - before.get(k, 0.0) for k, v in executor.clock.seconds.items()}
    waited = executor.workers * sum(clock.seconds[phase] for phase in ("train", "evaluate"))
    spent["idle"] = max(0.0, waited - sum(spent.values()))
    workers = {k: round(v, 6) for k, v in spent.items()}
    whole = {"round": sum(clock.seconds.values())}
    return cast(Seconds, {**whole, **clock.seconds, "workers": workers, "stored": stored})
