"""The settings of training, sampling, evaluation, stopping and failures; no torch is needed to read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from ..errors import ConfigError, nearest
from .fields import Count, Epochs, Natural, NonNegative, Parsed, Positive, Range, Share

Moment = Literal["pre", "post", "global"]
Kernels = Literal["fast", "plain"]


@dataclass(frozen=True)
class Train:
    """How a client trains, unless its method says otherwise."""

    batch: Count = 10
    """samples per step"""
    epochs: Epochs = 1
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

    @property
    def average(self) -> float:
        """The share of the clients that takes part in a round, on average."""
        return (self.ratio + (self.ratio if self.ratio_low is None else self.ratio_low)) / 2


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


FAULTS = ("drop", "error", "slow", "twice", "stale", "nan", "inf", "names", "shapes", "dtypes", "norm", "samples")
"""what can go wrong on purpose: a client says nothing, raises, is too slow, answers twice or for another round, or
sends values that are not finite, other names, shapes or types, a huge model, or a huge number of samples"""
STUDIES = {"fedah": "drop=0..0.9"}
"""faults of published studies by name; FedAH: in each round, a share drawn from [0.1, 1] of the clients is there"""


@dataclass(frozen=True)
class Inject(Parsed):
    """Faults that are made on purpose: of each kind, which share of a round's clients it meets."""

    shares: tuple[tuple[str, float, float], ...] = ()
    """kind, and from which to which share; each round draws one between them"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a text such as ``drop=0.3,nan=0.05``, where ``drop=0..0.9`` draws the share anew in each round."""
        if not isinstance(value, str):
            raise ConfigError(f"{at} is {value!r}, but must be a text like drop=0.3,nan=0.05.")
        text = STUDIES.get(value, value)
        shares = tuple(_share_of(part.strip(), at) for part in text.split(",")) if text else ()
        if len({kind for kind, _, _ in shares}) < len(shares) or sum(high for _, _, high in shares) > 1 + 1e-9:
            raise ConfigError(
                f"{at} is {value!r}, but a kind may stand there once, and all shares must add up to at most 1."
            )
        return cls(shares)

    def plain(self) -> str:
        """As `parse` takes it."""
        return ",".join(f"{k}={low:g}" if low == high else f"{k}={low:g}..{high:g}" for k, low, high in self.shares)


def _share_of(part: str, at: str) -> tuple[str, float, float]:
    kind, _, share = part.partition("=")
    if kind not in FAULTS:
        raise ConfigError(f"{at} names {kind!r}: {nearest(kind, (*FAULTS, *STUDIES))}")
    number = r"(0|1|0?\.\d{1,9}|[01]\.0)"
    found = re.fullmatch(rf"{number}(?:\.\.{number})?", share, re.ASCII)
    low, high = (float(found[1]), float(found[2] or found[1])) if found else (1.0, 0.0)
    if low > high:
        raise ConfigError(f"{at} has {part!r}, but the share must be from 0 to 1, like {kind}=0.3 or {kind}=0..0.9.")
    return kind, low, high


@dataclass(frozen=True)
class Faults:
    """What happens when a client fails, and which failures are made on purpose."""

    on_failure: Literal["stop", "skip", "retry"] | None = None
    """stop: the run ends, and replies are taken as they come; skip: replies are judged, and the round goes on without
    those that failed; retry: who gave no answer is asked again first; none: stop, or skip where faults are made"""
    retries: Count = 2
    """how often retry asks again"""
    min_replies: Natural = 1
    """replies without which a round, and the run, can't go on"""
    deadline: Positive | None = None
    """seconds that a client may take; results then depend on the machine"""
    max_norm: Positive | None = None
    """largest Euclidean norm of all that a client sends"""
    max_samples: Count = 10**7
    """most training samples that a client can claim to have"""
    inject: Inject = field(default_factory=Inject)
    """faults made on purpose, as shares of a round's clients: drop=0.3,nan=0.05,slow=0.1"""

    @property
    def reaction(self) -> Literal["stop", "skip", "retry"]:
        """What `on_failure` comes to."""
        return self.on_failure or ("skip" if self.inject.shares else "stop")


@dataclass(frozen=True)
class Robust:
    """How the server averages where some clients may be hostile."""

    rule: Literal["mean", "median", "trimmed", "clipped", "krum", "multi-krum", "geometric"] = "mean"
    """what it takes in place of the clients' mean, for methods that average a shared model"""
    hostile: Annotated[float, Range(0, 0.5)] = 0.2
    """share of hostile clients that trimmed, krum and multi-krum reckon with"""
    clip: Positive | None = None
    """largest norm of a client's change under the rule clipped; none: the median of the norms"""


@dataclass(frozen=True)
class Privacy:
    """Differential privacy against the server: of clients, by noise on what they send, or of their single examples."""

    clip: Positive | None = None
    """largest norm of what a client sends (the change of a model, or its class means), or of an example's gradient;
    none: no protection"""
    noise: Positive = 1.0
    """standard deviation of the noise on each number, as a multiple of twice the clip, or of the clip for examples"""
    delta: Annotated[float, Range(0, 0.1, above=True)] = 1e-5
    """probability with which epsilon may be exceeded"""
    source: Literal["system", "seed"] = "system"
    """of the noise: the system's cryptographic one, or the seed, which protects nobody but can be repeated"""
    level: Literal["client", "example"] = "client"
    """whose data are protected: all that a client has, or each of its examples by itself (DP-SGD)"""


@dataclass(frozen=True)
class Secure:
    """Masked sums, where clients are at sites: the server learns what their messages add up to, and no single one."""

    sums: bool = False
    """whether sites mask what their clients send, for methods whose server needs only means"""
    threshold: Annotated[float, Range(0.5, 1, above=True)] = 2 / 3
    """share of a round's sites that must stay to its end, three at least; so many together could open a message"""


@dataclass(frozen=True)
class Workers(Parsed):
    """How many clients are handled at the same time, and by what."""

    kind: Literal["auto", "processes", "threads"] = "auto"
    count: int = 0

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From ``auto``, a number of processes, or ``threads:`` and a number."""
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

    gone: ClassVar[Mapping[str, str]] = {"stack": "kernels", "cache": "kernels"}

    kind: str = "local"
    """local: processes or threads here; flower-sim: Flower's simulation engine; flower: sites, by headwise deploy; or
    an executor that another package offers"""
    workers: Workers = field(default_factory=Workers)
    """processes that train clients side by side: auto (one per core where that is worth it), a number, or threads:2"""
    device: str = "cpu"
    """cpu, cuda (all GPUs, shared by the workers), cuda:1, mps"""
    kernels: Kernels = "fast"
    """fast: many clients' layers at once, simple networks without autograd, features of a frozen body computed once;
    plain: autograd for one client after the other, and nothing kept; both agree to about 1e-6"""
    flower: Flower = field(default_factory=Flower)
    """nodes and resources, where Flower runs"""
