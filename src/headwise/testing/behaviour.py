"""Checks of what a method does: each runs it on a small federation and raises if anything is wrong."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from ..app.checks import check_task, methods_for
from ..contract.method import Reply, record_types
from ..data.federated import FederatedData
from ..engine.client.jobs import Job, handle, make_personal_model
from ..engine.client.state import encode_state
from ..engine.events import RoundEnded
from ..engine.executors.faulty import Faulty
from ..engine.executors.local import Serial
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench
from ..errors import ConfigError
from ..models.split import Buffers, SplitModel
from ..records import Record, decode, encode, pack, same, unpack
from ..settings.options import Faults, Inject, Train
from ..tasks.base import DEFAULT
from ..tasks.registry import TASKS, TaskName, kind_of, objective_of
from .toy import (
    AWKWARD,
    EASY,
    FEATURES,
    NEVER,
    ONE_CLASS,
    ONE_SAMPLE,
    SOME,
    AnyMethod,
    Recorder,
    federation,
    need_equal,
    network,
    play,
    reference_plan,
    toy_plan,
)
from .watching import Backwards, Listening, Watched, record_messages, up_of

REFUSED = ("error", "stale", "nan")
"""clients that raise, answer for another round, or send NaN"""
OUTPUTS = 2
SIDE = 4
RATE = 0.2
"""learning rate; quantities need half of it"""


def need(holds: bool, text: str) -> None:
    """Raise with this text unless it holds; unlike ``assert``, also under ``python -O``."""
    if not holds:
        raise AssertionError(text)


def records_round_trip(method: AnyMethod) -> None:
    """Every record has its declared type and survives packing and encoding bit for bit."""
    _, recorder, trainings = record_messages(method)
    types = record_types(type(method))
    seen: list[tuple[type[Record], Record]] = [(types.server, e.progress.server) for e in recorder.ended]
    for training in trainings:
        seen += [(types.client, training.after), (types.down, training.job.down), (types.up, up_of(training))]
    for cls, record in seen:
        need(type(record) is cls, f"it declares {cls.__name__}, but returned {type(record).__name__}")
        need(same(unpack(cls, pack(record)), record), f"{cls.__name__} changes when it is packed into tensors")
        need(same(decode(cls, encode(record)), record), f"{cls.__name__} changes when it is encoded as bytes")


def inputs_untouched(method: AnyMethod) -> None:
    """Neither half changes the records it is given, the initial model or the data."""
    plan = reference_plan(Watched(method))
    before = _belongings(plan)
    _finish(plan)
    need(before == _belongings(plan), "the initial model or the clients' data were changed in place")


def partial_participation(method: AnyMethod) -> None:
    """Clients that do not take part keep their state; rounds with a single client work."""
    ended = _finish(reference_plan(Watched(method))).ended
    for before, after in pairwise(ended):
        for c in before.states.keys() - set(after.changed):
            kept = encode_state(before.states[c]) == encode_state(after.states[c])
            need(kept, f"client {c} did not take part in round {after.row['round']}, but its state changed")
    _finish(toy_plan(Watched(method), ratio=1 / len(AWKWARD)))


def unseen_client(method: AnyMethod) -> None:
    """A client that never took part gets a model and can join late."""
    plan = toy_plan(Watched(method), ratio=SOME, every=1)
    ended = _finish(plan).ended
    lines = [line for e in ended for line in e.clients if line["client"] == NEVER]
    scores = [test["loss"] for line in lines if (parts := line.get("pre")) and (test := parts["test"])]
    usable = len(scores) == plan.experiment.rounds and all(map(math.isfinite, scores))
    need(usable, "a client that never trained got no model")
    server = ended[-1].progress.server
    central = ServerBench(plan, plan.experiment.rounds)
    job = Job("fit", NEVER, plan.experiment.rounds, plan.method.broadcast(server, NEVER, central))
    answer, _ = handle(plan, job, None)
    server = plan.method.aggregate(server, [Reply(NEVER, answer.up, answer.n)], central)
    need(_is_finite(server), "the server's state is not finite after a client joined late")


def awkward_clients(method: AnyMethod) -> None:
    """Clients with one class, one sample or less than a batch work, both among others and on their own."""
    few = (AWKWARD[ONE_CLASS], AWKWARD[ONE_SAMPLE], AWKWARD[ONE_SAMPLE])
    among_themselves = federation(few)
    _finish(toy_plan(Watched(method), rounds=2))
    _finish(toy_plan(Watched(method), rounds=2, data=among_themselves))
    _finish(toy_plan(Watched(method), rounds=2, train=Train(batch=8, lr=0.1, drop_last=True)))


def batch_norm(method: AnyMethod) -> None:
    """A network with BatchNorm works with every value of `buffers`, and nothing travels that must stay."""
    policies: tuple[Buffers, ...] = ("params", "all", "local")
    for policy in policies:
        plan = toy_plan(Watched(method), models=[network(norm=True)], buffers=policy, rounds=2)
        executor = Listening(plan)
        _finish(plan, executor)
        stays = set(plan.models[0].state()) - set(plan.models[0].params())
        for training in executor.trainings:
            sent = {k.split("/")[-1] for r in (training.job.down, up_of(training)) for k in pack(r).tensors}
            need(not sent & stays, f"with buffers={policy!r}, {sorted(sent & stays)} must not travel: send m.params()")


def different_networks(method: AnyMethod) -> None:
    """A method that allows it runs with two networks, of different widths if their heads may differ."""
    if method.heterogeneous == "no":
        return
    other = network(hidden=7) if method.heterogeneous == "same head" else network(width=7, hidden=4)
    plan = toy_plan(Watched(method), models=[network(), other], ratio=SOME)
    need_equal(_finish(plan).trace(), play(plan, Backwards(plan)).trace(), "with two networks, runs differ")


def learns(method: AnyMethod) -> None:
    """On an easy problem it clearly beats always guessing a client's most frequent class."""
    data = federation(EASY)
    plan = toy_plan(method, data=data, rounds=12, train=Train(batch=10, lr=0.1), every=4)
    rows = [row for row in play(plan).trace().parse() if "pre" in row]
    best = max(row[m]["accuracy"] for row in rows for m in ("pre", "stale"))
    floor = data.summary.floor.weighted
    assert floor is not None
    text = f"its best accuracy is {best:.2f}, where guessing the most frequent class gives {floor:.2f}"
    need(best > floor + 0.2, text)


def _finish(plan: Plan, executor: Listening | None = None) -> Recorder:
    """Run a plan with a watched method; raise if there are complaints or if a final state is not finite."""
    recorder = play(plan, executor)
    assert isinstance(plan.method, Watched)
    need(not plan.method.complaints, "; ".join(dict.fromkeys(plan.method.complaints)))
    last = recorder.ended[-1]
    need(_is_finite(last.progress.server), "the server's state is not finite")
    for c, state in last.states.items():
        need(_is_finite(state.me), f"the state of client {c} is not finite")
    return recorder


def _is_finite(record: Record) -> bool:
    return all(bool(t.isfinite().all()) for t in pack(record).tensors.values())


def _belongings(plan: Plan) -> list[bytes]:
    models = [t.detach().clone() for m in plan.models for t in m.state().values()]
    clients = [plan.data.client(c) for c in range(len(plan.data))]
    samples = [t for c in clients for part in (c.train, c.val, c.test) for t in (part.x, part.y)]
    return [t.numpy().tobytes() for t in [*models, *samples]]


def refused_replies_leave_no_trace(method: AnyMethod) -> None:
    """A failed client has the same effect as one that was never asked, and the run continues."""
    silent = _play_with_faults(method, "drop=0.4", rounds=1).trace()
    for kind in REFUSED:
        trace = _play_with_faults(method, f"{kind}=0.4", rounds=1).trace()
        need(trace.server == silent.server, f"clients whose fault was {kind!r} change the server's state")
    last = _play_with_faults(method, "drop=0.3,error=0.1,stale=0.1,nan=0.2,twice=0.1", rounds=3).ended[-1]
    values = [t for t in pack(last.progress.server).tensors.values() if t.is_floating_point()]
    need(all(bool(t.isfinite().all()) for t in values), "the server's state is not finite after rounds with failures")


def _play_with_faults(method: AnyMethod, inject: str, rounds: int) -> Recorder:
    faults = Faults(inject=Inject.parse(inject, "faults.inject"), min_replies=0)
    plan = toy_plan(method, rounds=rounds).with_settings(faults=faults)
    with closing(Faulty(Serial(plan), plan)) as executor:
        return play(plan, executor)


def tasks_as_the_card_says(method: AnyMethod) -> None:
    """In every task on its card, it beats the best constant prediction; all others are refused in a sentence."""
    known = bool(method.tasks) and set(method.tasks) <= set(TASKS)
    need(known, f"tasks is {method.tasks}, but must name some of {', '.join(TASKS)}")
    for task in TASKS:
        if task not in method.tasks:
            _check_refused(method, task)
        elif task != DEFAULT:  # which all other checks are about
            _check_learns(method, task)


def _check_learns(method: AnyMethod, task: TaskName) -> None:
    watched = Watched(method)
    given = method if kind_of(task).per_pixel else watched
    train = Train(batch=10, lr=RATE / 2 if kind_of(task).quantitative else RATE)
    plan = toy_plan(given, data=_federation(task), models=[_network(task)], rounds=5, train=train, moments=())
    loss, floor = _losses(plan, play(plan).ended[-1])
    need(not watched.complaints, f"in {task}, {'; '.join(dict.fromkeys(watched.complaints))}")
    need(loss < floor, f"its card says {task}, but its loss is {loss:.3f}, where a constant gives {floor:.3f}")


def _losses(plan: Plan, last: RoundEnded) -> tuple[float, float]:
    """On the clients' test samples: of the models that they would use now, and of the best constants."""
    objective = objective_of(plan.data.task)
    central = ServerBench(plan, last.progress.t)
    losses: list[Tensor] = []
    for c, state in last.states.items():
        own = plan.data.client(c)
        down = plan.method.broadcast(last.progress.server, c, central)
        model = make_personal_model(plan, c, central.t, state, down)
        guess = objective.guess(own.train.y)
        with torch.no_grad():
            scores = model(own.test.x)
        losses.append(torch.stack([objective.loss(z, own.test.y) for z in (scores, guess.expand_as(scores))]))
    learned, constant = torch.stack(losses).mean(0).tolist()
    return learned, constant


def _check_refused(method: AnyMethod, task: TaskName) -> None:
    plan = toy_plan(method, data=_federation(task), models=[_network(task)])
    try:
        check_task(plan.experiment, method, plan.data.task)
    except ConfigError as error:
        unnamed = [name for name in methods_for(task) if name not in str(error)]
        need(not unnamed, f"its refusal does not name {unnamed}, which can do {task}")
    else:
        need(False, f"its card does not say {task}, but such a run is not refused")


def _federation(task: TaskName) -> FederatedData:
    """Samples whose quantities are linear, labels are their signs, and bright pixels have a class of their own."""
    easy = federation(EASY)
    data = replace(easy.dataset, task=task, classes=tuple(f"output {k}" for k in range(OUTPUTS)))
    rng = np.random.default_rng(1)
    if kind_of(task).per_pixel:
        x = 3 * rng.standard_normal((len(data.x), 1, SIDE, SIDE)).astype(np.float32)
        return FederatedData(replace(data, x=x, y=(x[:, 0] > 0).astype(np.int64)), easy.parts)
    linear = data.x @ rng.standard_normal((FEATURES, OUTPUTS))
    y = 40 + 10 * linear if kind_of(task).quantitative else linear > 0
    return FederatedData(replace(data, y=y.astype(np.float32)), easy.parts)


def _network(task: TaskName) -> SplitModel:
    if not kind_of(task).per_pixel:
        return network(outputs=OUTPUTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return SplitModel(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), nn.Conv2d(4, OUTPUTS, 1)).eval()
