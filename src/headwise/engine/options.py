"""The settings of training, sampling, evaluation and stopping; no torch is needed to read them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ..errors import ConfigError
from ..settings import Count, NonNegative, Plain, Positive, Share

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
    batch: Count = 100
    """samples per forward pass"""


@dataclass(frozen=True)
class Stop:
    """When a run ends before its last round."""

    patience: Count | None = None
    """evaluations without a new best accuracy (validation if there is one, else test) after which it ends"""
    budget: Positive | None = None
    """seconds after which it stops at the end of a round; `headwise resume` goes on"""


@dataclass(frozen=True)
class Workers(Plain):
    """How many clients are handled at the same time, and by what."""

    kind: Literal["auto", "processes", "threads"] = "auto"
    count: int = 0

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From ``auto``, a number of processes, or ``threads:`` and a number."""
        if isinstance(value, cls):
            return value
        found = re.fullmatch(r"(auto)|(threads:)?([1-9]\d{0,2})", str(value), re.ASCII)
        count = int(found[3] or 0) if found else 0
        if not found or isinstance(value, bool) or count > 256:
            raise ConfigError(f"{at} is {value!r}, but must be auto, a number from 1 to 256, or like threads:2.")
        return cls("auto" if found[1] else "threads" if found[2] else "processes", count)

    def plain(self) -> Any:
        """As `parse` takes it."""
        return {"auto": "auto", "processes": self.count, "threads": f"threads:{self.count}"}[self.kind]


@dataclass(frozen=True)
class Flower:
    """Flower's simulation: how many nodes, and what each may use."""

    nodes: Count | None = None
    """virtual SuperNodes, over which the clients are dealt in turn; none: one for each client"""
    cpus: Positive = 1.0
    """cores for each node at work"""
    gpus: NonNegative = 0.0
    """share of a GPU for each node at work"""
    ray: str | None = None
    """address of a Ray cluster that runs already; the data and the run's folder must be there under the same paths"""


@dataclass(frozen=True)
class Engine:
    """Where it runs, and by which shortcuts."""

    kind: Literal["local", "flower-sim", "flower"] = "local"
    """local: processes or threads here; flower-sim: Flower's simulation engine; flower: sites, by headwise deploy"""
    workers: Workers = field(default_factory=Workers)
    """processes that train clients side by side: auto (one per core where that is worth it), a number, or threads:2"""
    device: str = "cpu"
    """cpu, cuda (all GPUs, shared by the workers), cuda:1, mps"""
    cache: bool = True
    """keep the features of a body that is frozen for a phase, instead of passing every batch through it"""
    stack: bool = True
    """train fully connected layers of several clients at once; the same to about 1e-6"""
    flower: Flower = field(default_factory=Flower)
    """nodes and resources, where Flower runs"""
