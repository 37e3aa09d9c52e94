"""The small federations that methods are checked on, and runs that can be compared bit for bit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ..app import registry
from ..contract.calls import AnyMethod
from ..data.dataset import Dataset
from ..data.federated import Clients, FederatedData
from ..data.splits import Parts
from ..engine.client.state import encode_state
from ..engine.driver import drive
from ..engine.events import Event, Progress, RoundEnded
from ..engine.executors.base import Executor
from ..engine.executors.local import Serial
from ..engine.host import use_one_thread
from ..engine.plan import Plan
from ..engine.sampling import sample
from ..models.split import Buffers, SplitModel
from ..records import encode
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from ..settings.options import Engine, Evaluate, Kernels, Moment, Sampling, Train
from .nervous import Nervous

T = TypeVar("T")

CLASSES = 4
FEATURES = 6
WIDTH = 5
ROUNDS = 3
ONE_CLASS = 2
ONE_SAMPLE = 3
NEVER = 4
"""clients of `AWKWARD`: one class, one sample (and no test samples), never drawn when only some take part"""
AWKWARD = ((13, 4, (0, 1, 2, 3)), (9, 0, (0, 1)), (6, 2, (2,)), (1, 0, (3,)), (8, 2, (1, 3)))
"""for each client: training samples, validation samples, classes; with batches of 4, some end in a batch of one"""
EASY = ((30, 0, (0, 1, 2)), (24, 0, (1, 2, 3)), (30, 0, (0, 2, 3)), (36, 0, (0, 1, 3)))
"""enough samples to learn from; no client's most frequent class is much more than a third of its samples"""
TRAIN = Train(batch=4, lr=0.1)
ALL_MOMENTS: tuple[Moment, ...] = ("pre", "post", "global")
SOME = 0.6
"""the share of clients that take part when not all do"""


def federation(
    clients: Sequence[tuple[int, int, tuple[int, ...]]] = AWKWARD, *, spoilt: int | None = None
) -> FederatedData:
    """Clouds of points around one centre per class; the `spoilt` client's labels are shifted by one."""
    rng = np.random.default_rng(0)
    centres = 2.5 * rng.standard_normal((CLASSES, FEATURES))
    sizes = [(train, val, 8 if train > 1 else 0) for train, val, _ in clients]
    y = np.concatenate([np.resize(c[2], n) for c, parts in zip(clients, sizes, strict=True) for n in parts])
    x = (centres[y] + rng.standard_normal((len(y), FEATURES))).astype(np.float32)
    owner = np.repeat(np.arange(len(clients)), [sum(parts) for parts in sizes])
    if spoilt is not None:
        y = np.where(owner == spoilt, (y + 1) % CLASSES, y)
    blocks = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    dataset = Dataset(x, y.astype(np.int64), tuple(f"class {k}" for k in range(CLASSES)), owner=owner)
    return FederatedData(dataset, [Parts(*blocks[i : i + 3]) for i in range(0, len(blocks), 3)])


def network(*, width: int = WIDTH, hidden: int | None = None, norm: bool = False, outputs: int = CLASSES) -> SplitModel:
    """A tiny network, the same in every process, with `width` features and perhaps a hidden layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        layers = [nn.Linear(FEATURES, hidden), nn.ReLU()] if hidden else []
        layers += [nn.Linear(hidden or FEATURES, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU()]
        return SplitModel(nn.Sequential(*layers), nn.Linear(width, outputs)).eval()


def toy_plan(
    method: AnyMethod,
    *,
    models: Sequence[SplitModel] = (),
    data: FederatedData | None = None,
    ratio: float = 1.0,
    rounds: int = ROUNDS,
    buffers: Buffers = "params",
    train: Train = TRAIN,
    moments: tuple[Moment, ...] = ("pre", "post"),
    every: int | None = None,
    kernels: Kernels = "fast",
) -> Plan:
    """A run of this method, by default on the awkward federation; measured at its end, or more often."""
    models = tuple(models) or (network(),)
    for m in models:
        m.batchnorm = buffers
    experiment = Experiment(
        rounds=rounds,
        seed=_seed(),
        train=train,
        sampling=Sampling(ratio),
        evaluate=Evaluate(every or rounds, moments),
        engine=Engine(kernels=kernels),
    )
    return Plan(experiment, method, models, (data or federation()).clients())


def rebuild_plan(name: str, options: Mapping[str, Any], nervous: bool, data: Clients) -> Plan:
    """`reference_plan` in another process, which is `nervous` from then on if asked."""
    if nervous:
        Nervous().__enter__()
    return dataclasses.replace(reference_plan(registry.make("method", Choice(name, options))), data=data)


def _seed() -> int:
    """The first seed with which exactly one client, `NEVER`, is never drawn in a run with `SOME` of them."""
    others = set(range(len(AWKWARD))) - {NEVER}
    for seed in range(10_000):
        rounds = [sample(Sampling(SOME), len(AWKWARD), seed, t) for t in range(1, ROUNDS + 1)]
        if {c for drawn in rounds for c in drawn} == others:
            return seed
    raise LookupError("no seed leaves exactly one client out")


_remembered: dict[tuple[str, type, str], Any] = {}


def remember(what: str, method: AnyMethod, make: Callable[[], T]) -> T:
    """Call `make` once per method and options, and remember the result: several checks use the same run."""
    key = (what, type(method), repr(method))
    if key not in _remembered:
        if len(_remembered) > 100:
            _remembered.clear()
        _remembered[key] = make()
    return _remembered[key]


@dataclass(frozen=True)
class Trace:
    """Everything a run leaves behind, as values that `==` compares bit for bit."""

    rows: tuple[str, ...]
    """the lines of rounds.jsonl, without time and memory"""
    lines: tuple[str, ...]
    """the lines of clients.jsonl"""
    server: bytes
    states: dict[int, bytes]

    def parse(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.rows]


class Recorder:
    """An observer that keeps every finished round."""

    def __init__(self) -> None:
        self.ended: list[RoundEnded] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEnded):  # the executor goes on changing its states, so copy them
            self.ended.append(dataclasses.replace(event, states=event.states.snapshot()))

    def trace(self) -> Trace:
        last = self.ended[-1]
        rows = [json.dumps({k: v for k, v in e.row.items() if k not in ("seconds", "memory")}) for e in self.ended]
        lines = [json.dumps(line) for e in self.ended for line in e.clients]
        states = {c: encode_state(s) for c, s in sorted(last.states.items())}
        return Trace(tuple(rows), tuple(lines), encode(last.progress.server), states)


def play(
    plan: Plan,
    executor: Executor | None = None,
    *,
    start: Progress | None = None,
    rounds: int | None = None,
    watching: Callable[[Event], None] = lambda event: None,
    nervous: bool = False,
) -> Recorder:
    """Run the plan, or its first `rounds` rounds, and return the rounds; if asked, on a `nervous` CPU."""
    recorder = Recorder()
    with use_one_thread(), Nervous() if nervous else nullcontext():
        drive(plan, executor or Serial(plan), (recorder, watching), start=start, rounds=rounds)
    return recorder


def reference_plan(method: AnyMethod) -> Plan:
    """A plain run in which only some clients take part."""
    return toy_plan(method, ratio=SOME, moments=ALL_MOMENTS)


def reference(method: AnyMethod, *, nervous: bool = False) -> Trace:
    """The trace of that run in one process, which every other way of running must match."""
    what = "nervous reference" if nervous else "reference"
    return remember(what, method, lambda: play(reference_plan(method), nervous=nervous).trace())


def need_equal(a: Trace, b: Trace, text: str) -> None:
    """Raise with this text, and what differs, unless both are the same to the bit."""
    parts = [f.name for f in dataclasses.fields(Trace) if getattr(a, f.name) != getattr(b, f.name)]
    if parts:
        raise AssertionError(f"{text} (different: {', '.join(parts)})")
