"""What a run's metric would be for models that know their client's training targets, but do not look at inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.client.scoring import over_clients, score
from ..engine.plan import Plan
from ..log.metrics import ACCURACY
from ..tasks.registry import kind_of, objective_of

Guess = tuple[Tensor, Tensor]
"""what such a model says about a client's test samples, and their targets"""


def floors_of(plan: Plan, counts: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Any]:
    """For partition.json: the metric over all clients and of each, None where it is not defined.

    Nothing for the accuracy of classes, which the counts say; nor where only sites could tell it.
    """
    metric, classes = plan.metric, kind_of(plan.task).one_class
    if (classes and metric is ACCURACY) or not (counts["train"] if classes else plan.data.reported_labels is None):
        return {}
    guesses = map(_of_classes, counts["train"], counts["test"]) if classes else _guesses(plan)
    each = [None if guess is None else score(*guess, [metric], plan.task) for guess in guesses]
    over = over_clients({c: found for c, found in enumerate(each) if found}, metric)
    clients = [found and found.get(metric.name) for found in each]
    return {"floors": {metric.name: {"over": over.get(metric.name), "clients": clients}}}


def _of_classes(train: Sequence[int], test: Sequence[int]) -> Guess | None:
    """Each class is as likely as in the training samples, as if each had been seen once more."""
    seen = torch.tensor(train, dtype=torch.float64) + 1
    y = torch.arange(len(test)).repeat_interleave(torch.tensor(test))
    return ((seen / seen.sum()).log().expand(len(y), -1), y) if len(y) else None


def _guesses(plan: Plan) -> Iterator[Guess | None]:
    objective = objective_of(plan.data.task)
    for c in range(len(plan.data)):
        data = plan.data.client(c)
        test = data.test.y
        guess = objective.in_target_units(objective.guess(data.train.y))
        yield (guess.expand(len(test), *guess.shape), test) if len(test) else None
