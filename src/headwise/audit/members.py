"""Membership inference from a personal model: samples it was trained on have smaller losses.

The plain attack uses the loss itself (Yeom et al., 2018); the calibrated one compares it with the loss under models
that have not seen the sample (Watson et al., 2022): here, other clients' models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..contract.benches import Predictor
from ..data.federated import Samples
from ..tasks.base import Objective
from ..tasks.classification import CROSS_ENTROPY
from ..tasks.registry import objective_of
from .findings import Finding, auc
from .scene import Scene, change, personal, sent

REFERENCES = 4
"""other clients' models used for calibration"""
HUGE = 1e9


@torch.no_grad()
def losses(model: Predictor, samples: Samples, objective: Objective = CROSS_ENTROPY) -> Tensor:
    """The loss of each sample; the same for all samples if the model diverged."""
    scores, y = model(samples.x), samples.y
    if y.dim() == 1:
        each = cross_entropy(scores, y, reduction="none")
    else:
        each = torch.stack([objective.loss(scores[i : i + 1], y[i : i + 1]) for i in range(len(y))])
    return each.double().nan_to_num(HUGE, HUGE)


def attack(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Tell these clients' training samples from their test samples."""
    rows: dict[str, list[float]] = {}
    how = objective_of(scene.plan.data.task)
    for client in clients:
        data = scene.plan.data.client(client)
        if client not in scene.states or not len(data.test):
            continue
        others = [personal(scene, c) for c in [c for c in scene.states if c != client][:REFERENCES]]
        usual = [sum(losses(m, part, how) for m in others) / max(len(others), 1) for part in (data.train, data.test)]
        for knowing, model in _models(scene, client):
            mine = [losses(model, part, how) for part in (data.train, data.test)]
            rows.setdefault(knowing, []).append(auc(-mine[0], -mine[1]))
            rows.setdefault(f"{knowing}, and other clients'", []).append(auc(usual[0] - mine[0], usual[1] - mine[1]))
    measure = "area under the curve, mean of clients"
    return [Finding("membership inference", who, measure, fmean(v), 0.5, len(v)) for who, v in rows.items()]


def _models(scene: Scene, client: int) -> Iterator[tuple[str, Predictor]]:
    """The model that the client uses; and the one it sends, if that is complete."""
    yield "the personal model", personal(scene, client)
    update, common = change(scene, sent(scene, client)), scene.plan.common
    if update is not None and update.moved.keys() == common.weights().keys():
        yield "the model that is sent", common.given(update.before + update.moved)
