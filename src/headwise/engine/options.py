"""The settings of training, sampling, evaluation and stopping; no torch is needed to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..settings import Count, NonNegative, Positive, Share

Moment = Literal["pre", "post", "global"]


@dataclass(frozen=True)
class Train:
    """How a client trains, unless its method says otherwise."""

    batch: Count = 10
    """samples per step"""
    epochs: Count = 1
    """passes over a client's data per round"""
    lr: Positive = 0.05
    """learning rate"""
    momentum: NonNegative = 0.0
    """momentum, fresh in each phase of each round"""
    weight_decay: NonNegative = 0.0
    """weight decay"""
    lr_decay: Share = 1.0
    """factor on the learning rate"""
    lr_decay_per: Literal["round", "participation"] = "round"
    """whether it is applied every round, or each time that the client itself has trained"""
    drop_last: bool = False
    """leave out a last, smaller batch, as public code does; clients with less than one batch then never train"""


@dataclass(frozen=True)
class Sampling:
    """Who takes part in a round."""

    ratio: Share = 1.0
    """share of the clients in each round"""
    ratio_low: Share | None = None
    """if given, each round's number of clients is drawn evenly between these two shares"""


@dataclass(frozen=True)
class Evaluate:
    """When and what is measured."""

    every: Count = 1
    """rounds between evaluations; the last round is always evaluated"""
    moments: tuple[Moment, ...] = ("pre", "post")
    """pre: all clients after a fresh download; post: participants after training; global: the one model on all tests"""
    batch: Count = 500
    """samples per forward pass"""


@dataclass(frozen=True)
class Stop:
    """When a run ends before its last round."""

    patience: Count | None = None
    """evaluations without a new best accuracy (validation if there is one, else test) after which it ends"""
    budget: Positive | None = None
    """seconds after which it stops at the end of a round; `headwise resume` goes on"""
