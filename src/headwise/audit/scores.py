"""Measures of an attack's success, each compared with guessing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Finding:
    attack: str
    knowing: str
    """what the attacker has, besides knowing the task"""
    measure: str
    found: float
    guess: float
    """the same measure for someone who has seen no message"""
    cases: int
    """how many samples, classes or clients were attacked"""


def correlation(truth: Tensor, made: Tensor) -> Tensor:
    """[n, k]: Pearson correlation of n true samples with k reconstructed ones; 0 if either is constant."""
    a, b = (t.flatten(1).double() - t.flatten(1).double().mean(1, keepdim=True) for t in (truth, made))
    norms = a.norm(dim=1)[:, None] * b.norm(dim=1)[None, :]
    return torch.where(norms > 0, a @ b.T / norms.clamp(min=1e-300), 0.0)


def best_match(truth: Tensor, made: Tensor) -> Tensor:
    """[n]: each true sample's correlation with the closest reconstructed one."""
    return correlation(truth, made).amax(1) if len(made) else torch.zeros(len(truth), dtype=torch.float64)


def auc(members: Tensor, others: Tensor) -> float:
    """The probability that a member scores higher than a non-member; ties count half."""
    both = members[:, None] - others[None, :]
    return float(((both > 0).double() + 0.5 * (both == 0).double()).mean())


def f1(found: set[int], truth: set[int]) -> float:
    return 2 * len(found & truth) / max(len(found) + len(truth), 1)


def agreement(found: Tensor, truth: Tensor) -> float:
    """One minus the total variation distance of two distributions."""
    return 1.0 - 0.5 * float((found.double() - truth.double()).abs().sum())
