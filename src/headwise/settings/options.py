"""The tables of settings in an `Experiment`: training, sampling, evaluation, stopping, faults, privacy, engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from ..errors import ConfigError
from ..tasks.registry import TaskName as TaskName
from .fields import Count, NonNegative, Parsed, Positive, Range, Share, Unit
from .updates import Updates

Moment = Literal["pre", "post", "global"]
Kernels = Literal["fast", "plain"]
Keepable = Literal["best", "post"]


@dataclass(frozen=True)
class Train(Updates):
    """How clients train, unless the method decides otherwise."""

    batch: Count = 10
    """samples per step"""
    lr: Positive = 0.05
    """learning rate"""
    lr_decay: Share = 1.0
    """factor by which the learning rate decays"""
    lr_decay_per: Literal["round", "participation"] = "round"
    """when it decays: every round, or each time the client itself trains"""
    drop_last: bool = False
    """skip a smaller last batch, as public code does; clients with less than one batch then never train"""
    class_weights: tuple[NonNegative, ...] | Literal["balanced"] | None = None
    """weights in the loss: a list with one for each class (for the ones of each label, in multilabel tasks), or
    balanced: all classes of a client's own training samples count the same"""
    label_smoothing: Annotated[float, Range(0, 0.999)] = 0.0
    """share of each label that is spread evenly over all classes"""


@dataclass(frozen=True)
class Sampling:
    """Who takes part in a round."""

    ratio: Share = 1.0
    """share of the clients that train in each round"""
    ratio_low: Share | None = None
    """if set, each round draws its share uniformly between ratio_low and ratio"""
    trace: str = ""
    """file that says which clients are there in each round, a line per round; ratio is then a share of these"""

    @property
    def average(self) -> float:
        """The share of the clients that takes part in a round, on average."""
        return (self.ratio + (self.ratio if self.ratio_low is None else self.ratio_low)) / 2


@dataclass(frozen=True)
class Evaluate:
    """What to measure, and when."""

    every: Count = 1
    """rounds between evaluations; the last round is always evaluated"""
    moments: tuple[Moment, ...] = ("pre", "post")
    """pre: all clients, after a fresh download; post: participants, after training; global: one model, all clients"""
    clients: Share = 1.0
    """share of the clients that pre, stale and global measure: the same ones in every round, drawn from the seed"""
    batch: Count = 100
    """samples per forward pass"""
    new_clients: Unit = 0.0
    """share of the clients, drawn from the seed, that never train: after the last round they join and are measured"""
    keep: tuple[Keepable, ...] | None = None
    """models to keep for later use besides the last round's: best, those of the round with the best accuracy; post,
    each client's as after its last training; none: best up to 1 GB and post up to 32 MB over all clients"""
    metric: str | None = None
    """judges the run: best round, early stopping, tables, reports; none: the usual one of the task, such as accuracy"""
    metrics: tuple[str, ...] = ()
    """what is measured besides; none: the usual ones of the task"""
    start: bool = True
    """also measure what clients have before the first round, as round 0"""
    validation: Annotated[float, Range(0, 0.9)] = 0.0
    """share of the training samples that are set aside for validation, at each client without validation samples"""


@dataclass(frozen=True)
class Stop:
    """When to end a run before its last round."""

    patience: Count | None = None
    """evaluations without a new best of evaluate.metric (on validation samples if any, else test) before it ends"""
    budget: Positive | None = None
    """seconds after which it stops at the end of a round; `headwise resume` continues"""


@dataclass(frozen=True)
class Robust:
    """How the server averages when some clients may be hostile."""

    rule: Literal["mean", "median", "trimmed", "clipped", "krum", "multi-krum", "geometric"] = "mean"
    """what replaces the clients' mean, for methods that average a shared model"""
    hostile: Annotated[float, Range(0, 0.5)] = 0.2
    """share of hostile clients that trimmed, krum and multi-krum assume"""
    clip: Positive | None = None
    """largest norm of a client's change under the clipped rule; none: the median norm"""


@dataclass(frozen=True)
class Privacy:
    """Differential privacy against the server: of whole clients (noise on messages) or single examples (DP-SGD)."""

    clip: Positive | None = None
    """norm to which a client's message (model change or class means) or an example's gradient is clipped; none: no
    protection"""
    noise: Positive = 1.0
    """standard deviation of the noise, as a multiple of twice the clip, or of the clip at level example"""
    delta: Annotated[float, Range(0, 0.1, above=True)] = 1e-5
    """probability that epsilon does not hold"""
    source: Literal["system", "seed"] = "system"
    """source of the noise: the system's cryptographic one, or the seed, which is repeatable but protects nobody"""
    mechanism: str | None = None
    """name of the mechanism; none: the first that protects this level and what the method sends"""
    level: Literal["client", "example"] = "client"
    """what is protected: all of a client's data, or each single example (DP-SGD)"""


@dataclass(frozen=True)
class Secure:
    """Masked sums for clients at sites: the server learns the sum of their messages, but no single message."""

    sums: bool = False
    """mask what sites send, for methods whose server needs only means"""
    threshold: Annotated[float, Range(0.5, 1, above=True)] = 2 / 3
    """share of a round's sites (at least three) that must stay to its end; as many colluding could unmask a message"""


@dataclass(frozen=True)
class Workers(Parsed):
    """How many clients to train in parallel, and whether in processes or threads."""

    kind: Literal["auto", "processes", "threads"] = "auto"
    count: int = 0

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        found = re.fullmatch(r"(auto)|(threads:)?([1-9]\d{0,2})", str(value), re.ASCII)
        count = int(found[3] or 0) if found else 0
        if not found or isinstance(value, bool) or count > 256:
            raise ConfigError(f"{at} is {value!r}, but must be auto, a number from 1 to 256, or like threads:2.")
        return cls("auto" if found[1] else "threads" if found[2] else "processes", count)

    def plain(self) -> Any:
        return {"auto": "auto", "processes": self.count, "threads": f"threads:{self.count}"}[self.kind]


@dataclass(frozen=True)
class Flower:
    """The nodes of Flower's simulation, and their resources."""

    nodes: Count | None = None
    """virtual SuperNodes, to which clients are assigned in turn; none: one per client"""
    cpus: Positive = 1.0
    """cores per active node"""
    gpus: NonNegative = 0.0
    """share of a GPU per active node"""
    ray: str | None = None
    """address of a running Ray cluster; it must have the data and the run's folder under the same paths"""


@dataclass(frozen=True)
class Engine:
    """Where to run, and with which kernels."""

    kind: str = "local"
    """local: processes or threads on this machine; flower-sim: Flower's simulation engine; flower: sites, through
    headwise deploy; or the name of another package's executor"""
    workers: Workers = field(default_factory=Workers)
    """processes that train clients in parallel: auto (one per core, for long runs), a number, or threads:2"""
    device: str = "cpu"
    """cpu, cuda (all GPUs, shared by the workers), cuda:1, mps"""
    kernels: Kernels = "fast"
    """fast: native kernels for chains of simple layers, cached features of a frozen body; plain: autograd, no caches;
    the two agree to about 1e-6"""
    flower: Flower = field(default_factory=Flower)
    """nodes and resources for flower-sim"""
