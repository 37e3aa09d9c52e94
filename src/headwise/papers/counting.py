"""Sizes of messages and models, counted in two real rounds on a federation of a few random samples."""

from __future__ import annotations

from functools import cache

import numpy as np
from torch import nn

from ..data.dataset import Dataset
from ..data.federated import FederatedData
from ..data.splits import Parts
from ..engine.driver import drive
from ..engine.events import Event, RoundEnded
from ..engine.executors.serial import Serial
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..log.schema import Round
from ..models import base
from ..models.split import SplitModel
from ..settings.experiment import Choice, Experiment
from ..settings.options import Evaluate
from .schema import CountedOn

SCALAR = 4
"""bytes of a float32, and of a label"""


def messages(experiment: Experiment, task: CountedOn) -> tuple[float, float]:
    """Bytes down and up per client in the second round, when every client has replied once."""
    rows: list[Round] = []

    def keep(event: Event) -> None:
        if isinstance(event, RoundEnded):
            rows.append(event.row)

    counted = Experiment(rounds=2, train=experiment.train, evaluate=Evaluate(every=2, moments=()))
    plan = Plan(
        counted,
        method=experiment.method.make("method"),
        models=tuple(build(m, task) for m in experiment.model),
        data=_federation(task).clients(),
        server_model=experiment.server_model and build(experiment.server_model, task),
    )
    with one_thread():
        drive(plan, Serial(plan), (keep,))
    last, clients = rows[-1], len(plan.data)
    return last["bytes_down"] / clients, last["bytes_up"] / clients


def build(choice: Choice, task: CountedOn) -> SplitModel:
    return choice.make("model").build(base.Task(task.shape, task.classes)).eval()


def weight(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def widths(module: nn.Module) -> list[int]:
    """Filters or units of each layer, from the first to the last."""
    return [p.shape[0] for name, p in module.named_parameters() if name.endswith("weight")]


@cache
def _federation(task: CountedOn) -> FederatedData:
    """Every client holds two random samples of each of its classes."""
    own = [(np.arange(task.own) + c * task.own) % task.classes for c in range(task.clients)]
    y = np.repeat(np.concatenate(own), 2).astype(np.int64)
    x = np.random.default_rng(0).standard_normal((len(y), *task.shape), dtype=np.float32)
    parts = [Parts(block, block[:0], block[:0]) for block in np.split(np.arange(len(y)), task.clients)]
    return FederatedData(Dataset(x, y, tuple(map(str, range(task.classes)))), parts)
