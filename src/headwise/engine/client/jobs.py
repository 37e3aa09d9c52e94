"""Everything that happens at a client: every executor calls `handle`."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn

from ...contract import calls
from ...contract.averaging import Shared
from ...contract.benches import Predictor
from ...contract.method import RecordTypes
from ...errors import ClientError
from ...log.metrics import Score
from ...models.split import SplitModel, snapshot
from ...params import Params
from ...records import Nothing, Record, map_tensors
from ...seeds import seed_of
from ...tasks.registry import objective_of
from ..host import Clock, Late, home, limit_seconds, move_to
from ..plan import Plan
from .client_bench import ClientBench
from .scoring import evaluate_model, score
from .state import ClientState

JobKind = Literal["census", "fit", "idle", "pre", "global"]


@dataclass(frozen=True)
class Job:
    """A client's task, and the message that comes with it."""

    kind: JobKind
    client: int
    t: int
    down: Record
    measure: bool = True
    """after training, measure the model on the client's own test samples"""


def message_type(kind: JobKind, types: RecordTypes) -> type[Record]:
    """The record sent with a job of this kind: the method's own, the global model's parameters, or nothing."""
    return {"global": Shared, "census": Nothing}.get(kind, types.down)


def answer_type(kind: JobKind, types: RecordTypes) -> type[Record]:
    """The record in the answer to such a job, if it has one."""
    return types.census if kind == "census" else types.up


class Failure(NamedTuple):
    """Why there is no usable answer."""

    reason: str
    """a word or two to count failures by"""
    detail: str
    """one sentence"""


@dataclass(frozen=True)
class Answer:
    kind: JobKind
    client: int
    n: int
    up: Record | None
    test: Score | None
    val: Score | None
    samples: int
    t: int
    """the round it is for"""
    failure: Failure | None = None
    """why the answer is empty, in runs that continue without failed clients"""
    flops: float = 0.0
    """of training, if its kernels count them"""

    @property
    def message(self) -> Record:
        """The record of an answer that must have one: training, or a census."""
        assert self.up is not None
        return self.up


Handled = tuple[Answer, ClientState | None]
"""an answer, and the client's new state if it has one"""


def report_failure(job: Job, reason: str, detail: str) -> Answer:
    """An empty answer that carries the reason."""
    return Answer(job.kind, job.client, 0, None, None, None, 0, job.t, Failure(reason, detail))


def make_personal_model(plan: Plan, client: int, t: int, state: ClientState | None, down: Record) -> Predictor:
    """The model of a client in this state after this download: bit for bit what this round's evaluation measures.

    A client without a state has never trained.
    """
    kept, trained = (state.kept, state.trained) if state else (Params(), 0)
    bench = ClientBench(plan, client, t, purpose="pre", kept=kept, trained=trained)
    with torch.random.fork_rng(devices=[]):
        _seed(plan, "pre", client, t)
        return _predictor(plan, Job("pre", client, t, down), *_move_here(plan, client, state, down), bench)


def restore_trained_model(plan: Plan, client: int, t: int, state: ClientState, down: Record) -> Predictor | None:
    """The client's model after its last training; None if the run did not keep it.

    The stored tensors belong to the architecture itself, or to the parts that the method combines.
    """
    bench = ClientBench(plan, client, t, purpose="pre", kept=state.kept, trained=state.trained)
    if not state.model:
        return None
    if state.model.keys() == bench.init().state_dict().keys():
        return bench.model(state.model)
    model = make_personal_model(plan, client, t, state, down)
    assert isinstance(model, nn.Module)
    for name, value in state.model.items():
        at, _, last = name.rpartition(".")
        part = model.get_submodule(at)
        here = move_to(value, plan.device)
        setattr(part, last, here if last in part._buffers else nn.Parameter(here))  # shapes may differ
    return model


def handle(
    plan: Plan, job: Job, state: ClientState | None, clock: Clock | None = None, *, seeded: bool = True
) -> Handled:
    """Do one job. Training returns the client's new state; an evaluation never changes it.

    With `seeded`, layers that draw from torch's own generator, such as dropout, depend only on the client and the
    round; no other thread may use that generator then.
    """
    clock = clock or Clock()
    clock.to("data")
    trained = state.trained if state else 0
    kept = state.kept if state else Params()
    local = ClientBench(plan, job.client, job.t, purpose=job.kind, kept=kept, trained=trained, clock=clock)
    clock.to("method")
    random = torch.default_generator.get_state() if seeded else None  # `fork_rng` takes four times as long
    try:
        if seeded:
            _seed(plan, job.kind, job.client, job.t)
        who = f"{type(plan.method).__name__} at {plan.data.describe(job.client)}"
        with limit_seconds(plan.experiment.faults.deadline, f"{who} ({job.kind}, round {job.t})"):
            return _do_job(plan, job, state, local, trained)
    except (Exception, SystemExit) as error:  # a method that calls sys.exit must not end the run silently
        detail = describe_failure(plan, error, plan.data.describe(job.client), job.t, job.kind)
        if plan.experiment.faults.reaction == "stop":
            raise ClientError(detail) from error
        failure = Failure("late" if isinstance(error, Late) else "raised", detail)
        return replace(_make_answer(plan, job, None, local), failure=failure), None
    finally:
        if random is not None:
            torch.default_generator.set_state(random)


def _do_job(plan: Plan, job: Job, state: ClientState | None, local: ClientBench, trained: int) -> Handled:
    if job.kind == "census":
        census = plan.method.answer_census(plan.privacy.bench(plan, local, job.kind))
        return _make_answer(plan, job, None, local, map_tensors(census, home)), None
    me, down = _move_here(plan, job.client, state, job.down)
    if job.kind == "fit":
        return _fit(plan, job, me, down, local, trained)
    if job.kind == "idle":
        mine = map_tensors(plan.method.idle_update(me, down, plan.privacy.bench(plan, local, job.kind)), home)
        model = state.model if state else Params()
        return _make_answer(plan, job, None, local), ClientState(mine, local.kept, trained, model)
    return _make_answer(plan, job, _predictor(plan, job, me, down, local), local), None


def describe_failure(plan: Plan, error: BaseException, where: str, t: int, phase: str) -> str:
    """One sentence about what a method raised, with the line in its own file."""
    own = inspect.getsourcefile(type(plan.method))
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    place = (
        error.place if isinstance(error, calls.WrongReturnError) else f"{Path(last.filename).name}, line {last.lineno}"
    )
    name = type(plan.method).__name__
    return f"{name} failed at {where} in round {t} ({phase}, {place}): {type(error).__name__}: {error}."


def _fit(plan: Plan, job: Job, me: Record, down: Record, local: ClientBench, trained: int) -> Handled:
    update = calls.local_update(plan.method, me, down, plan.privacy.bench(plan, local, job.kind))
    keep = update.keep or update.model
    kept = keep.private() if isinstance(keep, SplitModel) else local.kept
    up = map_tensors(update.up, home)
    me = map_tensors(update.me, home)
    up = plan.privacy.protect(
        job.down, up, classes=local.classes, seed=plan.experiment.seed, client=job.client, t=job.t
    )
    answer = _make_answer(plan, job, update.model if job.measure else None, local, up)
    whole = update.model if plan.keeps("post") and isinstance(update.model, nn.Module) else None
    model = Params() if whole is None else snapshot(whole).map(home)
    return answer, ClientState(me, kept.map(home), trained + 1, model)


def _seed(plan: Plan, kind: JobKind, client: int, t: int) -> None:
    """Seed torch's own generator, from which layers such as dropout draw, by the client and the round."""
    torch.default_generator.manual_seed(seed_of(plan.experiment.seed, "torch", kind, client, plan.at(t)))


def _move_here(plan: Plan, client: int, state: ClientState | None, down: Record) -> tuple[Record, Record]:
    """The client's state and its message, on this process's device."""
    me = state.me if state else make_first_state(plan, client)
    if plan.device == "cpu":
        return me, down
    return map_tensors(me, lambda t: move_to(t, plan.device)), map_tensors(down, lambda t: move_to(t, plan.device))


def make_first_state(plan: Plan, client: int) -> Record:
    """A client's first state, which must not depend on the round in which the client first takes part."""
    local = ClientBench(plan, client, 0, purpose="init", kept=Params(), trained=0)
    return calls.client_init(plan.method, plan.privacy.bench(plan, local, "init"))


def _predictor(plan: Plan, job: Job, me: Record, down: Record, local: ClientBench) -> Predictor:
    if job.kind == "pre":  # the model stays at the client, so it needs no protection
        return calls.personalize(plan.method, me, down, local)
    assert isinstance(down, Shared)  # the driver sends the global model's parameters
    return local.model(down.w, common=True)


def _make_answer(plan: Plan, job: Job, model: Predictor | None, local: ClientBench, up: Record | None = None) -> Answer:
    n, samples = (1, 0) if plan.privacy.hides_sizes else (local.n, local.samples[0])  # sizes reveal something too
    with local.clock("evaluation"):
        test, val = (None, None) if model is None else measure_model(plan, job.client, job.t, model)
    flops = 0.0 if plan.privacy.hides_sizes else local.flops[0]
    return Answer(job.kind, job.client, n, up, test, val, samples, job.t, flops=flops)


def measure_model(plan: Plan, client: int, t: int, model: Predictor) -> tuple[Score | None, Score | None]:
    """Scores on the client's test and validation samples, in one pass."""
    data = plan.client(client, t)
    test = data.test
    val = data.val
    if not len(test) + len(val):
        return None, None
    outputs = evaluate_model(plan, model, torch.cat([test.x, val.x]))
    z = objective_of(plan.data.task).in_target_units(outputs)
    parts = ((z[: len(test)], test.y), (z[len(test) :], val.y))
    on_test, on_val = (score(z, y, plan.metrics, plan.task) if len(y) else None for z, y in parts)
    return on_test, on_val
