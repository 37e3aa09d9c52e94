"""Everything that happens at a client. Every executor ends up in `handle`."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..averaging import Shared
from ..errors import ClientError
from ..method import Predictor, Update
from ..models.split import SplitModel
from ..params import Params
from ..records import Record, map_tensors
from ..seeds import seed_of
from .bench import ClientBench
from .plan import Plan
from .scores import Score, score
from .state import ClientState

Task = Literal["fit", "idle", "pre", "global"]


@dataclass(frozen=True)
class Job:
    """What a client is asked to do, and what it is sent for that."""

    task: Task
    client: int
    t: int
    down: Record
    measure: bool = True
    """after training, measure the model on the client's own test samples"""


@dataclass(frozen=True)
class Answer:
    """What comes back."""

    task: Task
    client: int
    n: int
    up: Record | None
    test: Score | None
    val: Score | None
    samples: int


def handle(plan: Plan, job: Job, state: ClientState | None) -> tuple[Answer, ClientState | None]:
    """Do one job. Training returns the client's new state; an evaluation never changes it."""
    trained = state.trained if state else 0
    local = ClientBench(
        plan, job.client, job.t, purpose=job.task, kept=state.kept if state else Params(), trained=trained
    )
    with torch.random.fork_rng(devices=[]):
        # layers that draw from torch's own generator (dropout) follow the client and round too
        torch.default_generator.manual_seed(seed_of(plan.seed, "torch", job.task, job.client, job.t))
        try:
            me = state.me if state else plan.method.client_init(_first_bench(plan, job.client))
            me, down = (map_tensors(r, lambda t: t.to(plan.device)) for r in (me, job.down))
            if job.task == "fit":
                return _fit(plan, job, me, down, local, trained)
            if job.task == "idle":
                mine = map_tensors(plan.method.idle_update(me, down, local), _home)
                return _measure(plan, job, None, local), ClientState(mine, local.kept, trained)
            return _measure(plan, job, _predictor(plan, job, me, down, local), local), None
        except Exception as error:
            name, what = type(plan.method).__name__, f"{type(error).__name__}: {error}"
            raise ClientError(
                f"{name} failed at client {job.client} in round {job.t} ({job.task}, {_place(plan, error)}): {what}."
            ) from error


def _place(plan: Plan, error: Exception) -> str:
    """The line of the method's own file at which it failed."""
    own = inspect.getsourcefile(type(plan.method))
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    return f"{Path(last.filename).name}, line {last.lineno}"


def _fit(
    plan: Plan, job: Job, me: Record, down: Record, local: ClientBench, trained: int
) -> tuple[Answer, ClientState]:
    update: Update[Record, Record] = plan.method.local_update(me, down, local)
    keep = update.keep or update.model
    kept = _private(keep) if isinstance(keep, SplitModel) else local.kept
    up, me, kept = map_tensors(update.up, _home), map_tensors(update.me, _home), kept.map(_home)
    answer = _measure(plan, job, update.model if job.measure else None, local, up)
    return answer, ClientState(me, kept, trained + 1)


def _first_bench(plan: Plan, client: int) -> ClientBench:
    """The bench of a client's first state: it must not depend on when the client is first asked."""
    return ClientBench(plan, client, 0, purpose="init", kept=Params(), trained=0)


def _predictor(plan: Plan, job: Job, me: Record, down: Record, local: ClientBench) -> Predictor:
    if job.task == "pre":
        return plan.method.personalize(me, down, local)
    assert isinstance(down, Shared)  # the driver sends the global model's parameters
    return local.model(down.w, common=True)


def _measure(plan: Plan, job: Job, model: Predictor | None, local: ClientBench, up: Record | None = None) -> Answer:
    data, classes = plan.data.client(job.client), plan.data.task.classes
    test = val = None
    if model is not None:
        test = score(model, data.test, classes, batch=plan.evaluate.batch, device=plan.device)
        val = score(model, data.val, classes, batch=plan.evaluate.batch, device=plan.device)
    return Answer(job.task, job.client, local.n, up, test, val, local.samples[0])


def _private(model: SplitModel) -> Params:
    """What the buffer policy keeps at the client."""
    travelling = model.params()
    return Params({k: t for k, t in model.state().items() if k not in travelling})


def _home(t: Tensor) -> Tensor:
    """Records between rounds live in main memory, whatever device trained them."""
    return t.detach().cpu()
