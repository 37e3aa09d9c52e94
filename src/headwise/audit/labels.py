"""Infers a client's label distribution from what it must ask for, what its message names, and how its head changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .findings import Finding, agreement, f1
from .scene import Asking, Scene, Sent, change, sent


def asked_for(scene: Scene, client: int) -> Tensor | None:
    """Equal shares of the labels that the client must reveal to get its broadcast; None if it need not."""
    bench = Asking(scene.plan, scene.t)
    scene.plan.method.broadcast(scene.server, client, bench)
    return _even(bench.labels(client), bench.classes) if client in bench.asked else None


def named(scene: Scene, message: Sent) -> Tensor | None:
    """Shares of the labels that the message names, by their counts if it has them, else equal."""
    labels: Any = getattr(message.up, "labels", None)
    if not isinstance(labels, Tensor):
        return None
    counts: Any = getattr(message.up, "counts", None)
    shares = _even(labels.tolist(), scene.plan.data.task.classes)
    return shares if not isinstance(counts, Tensor) else shares.index_put((labels.long(),), _shares(counts))


def from_head(scene: Scene, message: Sent) -> Tensor | None:
    """Shares from the change of the head's biases: they grow for labels that the client holds and shrink for others."""
    update = change(scene, message)
    moved = {k: t for k, t in update.moved.items() if k.startswith("head.") and k.endswith("bias")} if update else {}
    last = [*moved.values()][-1:]
    return _shares(last[0].clamp(min=0)) if last and len(last[0]) == scene.plan.data.task.classes else None


def attack(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Infer these clients' labels and their shares in each possible way."""
    ways: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for client in clients:
        message = sent(scene, client)
        truth = _shares(torch.bincount(scene.train(client).y, minlength=scene.plan.data.task.classes))
        for knowing, shares in (
            ("what is asked for", asked_for(scene, client)),
            ("the labels in the message", named(scene, message)),
            ("how the head moved", from_head(scene, message)),
        ):
            if shares is not None:
                ways.setdefault(knowing, []).append((shares, truth))
    return [finding for knowing, cases in ways.items() for finding in _findings(knowing, cases)]


def _findings(knowing: str, cases: Sequence[tuple[Tensor, Tensor]]) -> list[Finding]:
    every = _even(range(len(cases[0][1])), len(cases[0][1]))
    measures = {
        "labels held, F1": lambda a, b: f1(_held(a), _held(b)),
        "shares of labels, agreement": agreement,
    }
    return [
        Finding("label leakage", knowing, name, fmean(measure(a, b) for a, b in cases),
                fmean(measure(every, b) for _, b in cases), len(cases))
        for name, measure in measures.items()
    ]  # fmt: skip


def _held(shares: Tensor) -> set[int]:
    return set(shares.nonzero().flatten().tolist())


def _even(labels: Iterable[int], classes: int) -> Tensor:
    return _shares(torch.bincount(torch.tensor([*labels], dtype=torch.int64), minlength=classes))


def _shares(counts: Tensor) -> Tensor:
    return counts.double() / counts.double().sum().clamp(min=1e-12)
