"""Scores: how good a model is on one client's samples, and what that means over all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Score:
    """One model on one client's samples."""

    n: int
    accuracy: float
    balanced: float
    """mean recall over the classes that the samples have"""
    f1: float
    """mean F1 over the classes that the samples or the predictions have"""
    loss: float


def score(z: Tensor, y: Tensor) -> Score:
    """How good the class scores `z`, [n, classes], are for these labels."""
    classes = z.shape[1]
    loss = cross_entropy(z, y).item()
    pairs = y * classes + z.argmax(1)
    confusion = torch.bincount(pairs, minlength=classes * classes).view(classes, classes).double()
    hits, truth, guess = confusion.diag(), confusion.sum(1), confusion.sum(0)
    recall = hits[truth > 0] / truth[truth > 0]
    f1 = (2 * hits / (truth + guess))[truth + guess > 0]
    return Score(len(y), hits.sum().item() / len(y), recall.mean().item(), f1.mean().item(), loss)


def over_clients(scores: Mapping[int, Score]) -> dict[str, float | int]:
    """Means and spread over the clients that have a score."""
    if not scores:
        return {"clients": 0, "samples": 0}
    ordered = [scores[c] for c in sorted(scores)]
    n = np.array([s.n for s in ordered], dtype=float)
    accuracy = np.array([s.accuracy for s in ordered])
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    return {
        "accuracy": float((accuracy * n).sum() / n.sum()),
        "client_mean": float(accuracy.mean()),
        "client_std": float(accuracy.std()),
        "worst_decile": float(worst.mean()),
        "balanced": float(np.mean([s.balanced for s in ordered])),
        "f1": float(np.mean([s.f1 for s in ordered])),
        "loss": float((np.array([s.loss for s in ordered]) * n).sum() / n.sum()),
        "clients": len(ordered),
        "samples": int(n.sum()),
    }
