"""Inference of a client's labels and of its training samples.

Labels follow from what a client must request, what its message names, and how its head changes. Samples that a personal
model was trained on have smaller losses: the plain attack uses the loss itself (Yeom et al., 2018); the calibrated one
compares it with the loss under models that have not seen the sample (Watson et al., 2022), here other clients' models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..contract.benches import Predictor
from ..data.federated import Samples
from ..tasks.base import Objective
from ..tasks.classification import CROSS_ENTROPY
from ..tasks.registry import objective_of
from .findings import Finding, agreement, auc, f1
from .scene import ClientMessage, LabelRequests, Scene, find_change, load_personal_model, make_message

REFERENCES = 4
"""other clients' models used for calibration"""
HUGE = 1e9


def find_requested_shares(scene: Scene, client: int) -> Tensor | None:
    """Equal shares of the labels that the client must reveal to get its broadcast; None if it need not."""
    bench = LabelRequests(scene.plan, scene.t)
    scene.plan.method.broadcast(scene.server, client, bench)
    return _share_evenly(bench.labels(client), bench.classes) if client in bench.disclosed else None


def find_named_shares(scene: Scene, message: ClientMessage) -> Tensor | None:
    """Shares of the labels that the message names, by their counts if it has them, else equal."""
    labels: Any = getattr(message.up, "labels", None)
    if not isinstance(labels, Tensor):
        return None
    counts: Any = getattr(message.up, "counts", None)
    shares = _share_evenly(labels.tolist(), scene.plan.data.task.classes)
    return shares if not isinstance(counts, Tensor) else shares.index_put((labels.long(),), _shares(counts))


def shares_from_head(scene: Scene, message: ClientMessage) -> Tensor | None:
    """Shares from the change of the head's biases: they grow for labels that the client holds and shrink for others."""
    update = find_change(scene, message)
    moved = {k: t for k, t in update.moved.items() if k.startswith("head.") and k.endswith("bias")} if update else {}
    last = [*moved.values()][-1:]
    return _shares(last[0].clamp(min=0)) if last and len(last[0]) == scene.plan.data.task.classes else None


def infer_labels(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Infer these clients' labels and their shares in each possible way."""
    ways: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for client in clients:
        message = make_message(scene, client)
        truth = _shares(torch.bincount(scene.train(client).y, minlength=scene.plan.data.task.classes))
        for knowing, shares in (
            ("what is requested", find_requested_shares(scene, client)),
            ("the labels in the message", find_named_shares(scene, message)),
            ("how the head moved", shares_from_head(scene, message)),
        ):
            if shares is not None:
                ways.setdefault(knowing, []).append((shares, truth))
    return [finding for knowing, cases in ways.items() for finding in _findings(knowing, cases)]


def _findings(knowing: str, cases: Sequence[tuple[Tensor, Tensor]]) -> list[Finding]:
    every = _share_evenly(range(len(cases[0][1])), len(cases[0][1]))
    measures = {
        "labels held, F1": lambda a, b: f1(_list_held(a), _list_held(b)),
        "shares of labels, agreement": agreement,
    }
    return [
        Finding("label leakage", knowing, name, fmean(measure(a, b) for a, b in cases),
                fmean(measure(every, b) for _, b in cases), len(cases))
        for name, measure in measures.items()
    ]  # fmt: skip


def _list_held(shares: Tensor) -> set[int]:
    return set(shares.nonzero().flatten().tolist())


def _share_evenly(labels: Iterable[int], classes: int) -> Tensor:
    return _shares(torch.bincount(torch.tensor([*labels], dtype=torch.int64), minlength=classes))


def _shares(counts: Tensor) -> Tensor:
    return counts.double() / counts.double().sum().clamp(min=1e-12)


@torch.no_grad()
def losses(model: Predictor, samples: Samples, objective: Objective = CROSS_ENTROPY) -> Tensor:
    """The loss of each sample; the same for all samples if the model diverged."""
    scores = model(samples.x)
    y = samples.y
    if y.dim() == 1:
        each = cross_entropy(scores, y, reduction="none")
    else:
        each = torch.stack([objective.loss(scores[i : i + 1], y[i : i + 1]) for i in range(len(y))])
    return each.double().nan_to_num(HUGE, HUGE)


def infer_members(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Tell these clients' training samples from their test samples."""
    rows: dict[str, list[float]] = {}
    how = objective_of(scene.plan.data.task)
    for client in clients:
        data = scene.plan.data.client(client)
        if client not in scene.states or not len(data.test):
            continue
        others = [load_personal_model(scene, c) for c in [c for c in scene.states if c != client][:REFERENCES]]
        usual = [sum(losses(m, part, how) for m in others) / max(len(others), 1) for part in (data.train, data.test)]
        for knowing, model in _models(scene, client):
            mine = [losses(model, part, how) for part in (data.train, data.test)]
            rows.setdefault(knowing, []).append(auc(-mine[0], -mine[1]))
            rows.setdefault(f"{knowing}, and other clients'", []).append(auc(usual[0] - mine[0], usual[1] - mine[1]))
    measure = "area under the curve, mean of clients"
    return [Finding("membership inference", who, measure, fmean(v), 0.5, len(v)) for who, v in rows.items()]


def _models(scene: Scene, client: int) -> Iterator[tuple[str, Predictor]]:
    """The model that the client uses; and the one it sends, if that is complete."""
    yield "the personal model", load_personal_model(scene, client)
    update = find_change(scene, make_message(scene, client))
    common = scene.plan.common
    if update is not None and update.moved.keys() == common.weights().keys():
        yield "the model that is sent", common.given(update.before + update.moved)
