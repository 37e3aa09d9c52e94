"""Who was in the training data, from a personal model: samples that were learned have smaller losses.

The plain attack looks at the loss itself (Yeom et al., 2018); the calibrated one at how much smaller it is than under
models that have not seen the sample (Watson et al., 2022), for which other clients' models stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data.federated import Samples
from .scene import Scene, personal
from .scores import Finding, auc

REFERENCES = 4
"""other clients' models that a sample is compared under"""


@torch.no_grad()
def losses(model: Callable[[Tensor], Tensor], samples: Samples) -> Tensor:
    """The loss of each sample."""
    return cross_entropy(model(samples.x), samples.y, reduction="none").double()


def attack(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Membership inference on these clients' models: their training samples against their test samples."""
    plain: list[float] = []
    calibrated: list[float] = []
    for client in clients:
        data = scene.plan.data.client(client)
        if client not in scene.states or not len(data.test):
            continue
        model = personal(scene, client)
        others = [personal(scene, c) for c in scene.states if c != client][:REFERENCES]
        mine = [losses(model, part) for part in (data.train, data.test)]
        plain.append(auc(-mine[0], -mine[1]))
        if others:
            usual = [torch.stack([losses(m, part) for m in others]).mean(0) for part in (data.train, data.test)]
            calibrated.append(auc(usual[0] - mine[0], usual[1] - mine[1]))
    measure = "area under the curve, mean of clients"
    rows = (("the personal model", plain), ("the personal model and other clients' models", calibrated))
    return [Finding("membership inference", who, measure, fmean(v), 0.5, len(v)) for who, v in rows if v]
