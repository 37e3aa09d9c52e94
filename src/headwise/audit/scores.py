"""How much an attack has found, each measure with what guessing comes to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """What an attack came to."""

    attack: str
    knowing: str
    """what the attacker has beside what it knows of the task"""
    measure: str
    found: float
    guess: float
    """the same for somebody who has seen no message"""
    cases: int
    """how many samples, classes or clients were attacked"""


def correlation(truth: Tensor, made: Tensor) -> Tensor:
    """[n, k]: Pearson's correlation of each of n true samples with each of k made ones; 0 where one is constant."""
    a, b = (t.flatten(1).double() - t.flatten(1).double().mean(1, keepdim=True) for t in (truth, made))
    norms = a.norm(dim=1)[:, None] * b.norm(dim=1)[None, :]
    return torch.where(norms > 0, a @ b.T / norms.clamp(min=1e-300), 0.0)


def best_match(truth: Tensor, made: Tensor) -> Tensor:
    """[n]: how near the nearest of the made samples comes to each true one."""
    return correlation(truth, made).amax(1) if len(made) else torch.zeros(len(truth), dtype=torch.float64)


def auc(members: Tensor, others: Tensor) -> float:
    """The probability that a member's score is above another's; half where they are equal."""
    both = members[:, None] - others[None, :]
    return float(((both > 0).double() + 0.5 * (both == 0).double()).mean())


def f1(found: set[int], truth: set[int]) -> float:
    """The harmonic mean of precision and recall."""
    return 2 * len(found & truth) / max(len(found) + len(truth), 1)


def agreement(found: Tensor, truth: Tensor) -> float:
    """How far two distributions agree: one less their total variation."""
    return 1.0 - 0.5 * float((found.double() - truth.double()).abs().sum())
