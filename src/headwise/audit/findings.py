"""What an attack achieved, compared with guessing, and what audits of the built-in methods recovered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..disk.files import read_json


@dataclass(frozen=True)
class Finding:
    attack: str
    knowing: str
    """what the attacker has, besides knowing the task"""
    measure: str
    score: float
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


def f1(guessed: set[int], truth: set[int]) -> float:
    return 2 * len(guessed & truth) / max(len(guessed) + len(truth), 1)


def agreement(guessed: Tensor, truth: Tensor) -> float:
    """One minus the total variation distance of two distributions."""
    return 1.0 - 0.5 * float((guessed.double() - truth.double()).abs().sum())


SHIPPED = Path(__file__).parent / "known.json"


@dataclass(frozen=True)
class KnownAttack:
    """The strongest attack of its kind."""

    attack: str
    knowing: str
    measure: str
    guess: float
    """the score of somebody who has seen no message"""
    score: float
    epsilon: float | None
    """the epsilon that protected the attacked messages; None: no protection"""


@cache
def read_known_audits() -> dict[str, Any]:
    return read_json(SHIPPED)


def strongest(method: str, epsilon: float | None) -> tuple[KnownAttack, ...]:
    """Of each kind of attack, the one that gains most over guessing, at no stronger protection than `epsilon`."""
    known = read_known_audits()[method]
    weaker = {e: k for k, e in enumerate(known["epsilon"]) if e is not None and epsilon is not None and e >= epsilon}
    column = weaker[min(weaker)] if weaker else known["epsilon"].index(None)
    best: dict[str, KnownAttack] = {}
    for row in known["attacks"]:
        if (value := row["score"][column]) is None:
            continue
        now = KnownAttack(row["attack"], row["knowing"], row["measure"], row["guess"], value, known["epsilon"][column])
        kind = now.attack.split(",")[0]
        if kind not in best or now.score - now.guess > best[kind].score - best[kind].guess:
            best[kind] = now
    return tuple(best.values())
