"""Checks of the tasks on a method's card: it learns what the card says, and is refused for all else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from ..app.checks import check_task, methods_for
from ..data.federated import FederatedData
from ..engine.client.jobs import make_personal_model
from ..engine.events import RoundEnded
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench
from ..errors import ConfigError
from ..models.split import SplitModel
from ..settings.options import Train
from ..tasks.base import DEFAULT
from ..tasks.registry import TASKS, TaskName, kind_of, objective_of
from .behaviour import need
from .toy import EASY, FEATURES, AnyMethod, divided, federation, network, play, toy_plan
from .watching import Watched

OUTPUTS, SIDE = 2, 4
RATE = 0.2
"""learning rate; quantities need half of it"""


def tasks_as_the_card_says(method: AnyMethod) -> None:
    """In every task of its card, it beats a model that always says the same; all others are refused in a sentence."""
    known = bool(method.tasks) and set(method.tasks) <= set(TASKS)
    need(known, f"tasks is {method.tasks}, but must name some of {', '.join(TASKS)}")
    for task in TASKS:
        if task not in method.tasks:
            _is_refused(method, task)
        elif task != DEFAULT:  # which all other checks are about
            _learns(method, task)


def _learns(method: AnyMethod, task: TaskName) -> None:
    watched = Watched(method)
    given = method if kind_of(task).per_pixel else watched
    train = Train(batch=10, lr=RATE / 2 if kind_of(task).quantitative else RATE)
    plan = toy_plan(given, data=_federation(task), models=[_network(task)], rounds=5, train=train, moments=())
    loss, floor = _losses(plan, play(plan).ended[-1])
    need(not watched.complaints, f"in {task}, {'; '.join(dict.fromkeys(watched.complaints))}")
    need(loss < floor, f"its card says {task}, but its loss is {loss:.3f}, where a constant gives {floor:.3f}")


def _losses(plan: Plan, last: RoundEnded) -> tuple[float, float]:
    """On the clients' test samples: of the models that they would use now, and of the best constants."""
    objective, central, losses = objective_of(plan.data.task), ServerBench(plan, last.progress.t), list[Tensor]()
    for c, state in last.states.items():
        own, down = plan.data.client(c), plan.method.broadcast(last.progress.server, c, central)
        model = make_personal_model(plan, c, central.t, state, down)
        guess = objective.guess(own.train.y)
        with torch.no_grad():
            scores = model(own.test.x)
        losses.append(torch.stack([objective.loss(z, own.test.y) for z in (scores, guess.expand_as(scores))]))
    learned, constant = torch.stack(losses).mean(0).tolist()
    return learned, constant


def _is_refused(method: AnyMethod, task: TaskName) -> None:
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
    data, rng = federation(EASY), np.random.default_rng(1)
    names = tuple(f"output {k}" for k in range(OUTPUTS))
    if kind_of(task).per_pixel:
        x = 3 * rng.standard_normal((len(data.x), 1, SIDE, SIDE)).astype(np.float32)
        return divided(replace(data, x=x, y=(x[:, 0] > 0).astype(np.int64), classes=names, task=task), EASY)
    linear = data.x @ rng.standard_normal((FEATURES, OUTPUTS))
    y = 40 + 10 * linear if kind_of(task).quantitative else linear > 0
    return divided(replace(data, y=y.astype(np.float32), classes=names, task=task), EASY)


def _network(task: TaskName) -> SplitModel:
    if not kind_of(task).per_pixel:
        return network(outputs=OUTPUTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return SplitModel(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), nn.Conv2d(4, OUTPUTS, 1)).eval()
