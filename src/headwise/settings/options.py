"""The tables of settings in an `Experiment`: training, sampling, evaluation, stopping, faults, privacy, engine, ..."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from ..errors import ConfigError, nearest
from ..tasks.registry import TaskName as TaskName
from .choices import Augmentation
from .fields import Count, Epochs, Natural, NonNegative, Parsed, Positive, Range, Share, Unit

Beta = Annotated[float, Range(0, 0.999999)]
Moment = Literal["pre", "post", "global"]
Kernels = Literal["fast", "plain"]
Keepable = Literal["best", "post"]


@dataclass(frozen=True)
class Train:
    """How clients train, unless the method decides otherwise."""

    epochs: Epochs | Annotated[float, Range(0, 10_000, above=True)] = 1
    """passes over a client's data per round; a fraction of a pass is rounded up to whole batches"""
    steps: Annotated[int, Range(1, 10**6)] | None = None
    """steps per round, however much data a client has; none: as many as `epochs` gives"""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """the optimizer; its state is fresh in every training phase"""
    momentum: Unit = 0.0
    """momentum of sgd, reset at the start of every training phase"""
    weight_decay: NonNegative = 0.0
    """weight decay: added to the gradient or, with adamw, subtracted from the weights"""
    betas: tuple[Beta, ...] = (0.9, 0.999)
    """decay of adam's means of the gradient and of its square"""
    eps: Positive = 1e-8
    """what adam adds to its denominator"""
    clip: Positive | None = None
    """largest norm of a step's gradient; none: no clipping"""
    augment: tuple[Augmentation, ...] = ()
    """random changes to training samples, in this order: flip (half of the images, left to right), crop (images shifted
    by up to an eighth, edges repeated), erase (a rectangle of half of the images set to 0, a fiftieth to a third of
    the image), or a function of your own: package.module:function or file.py:function"""
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

    def check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if len(self.betas) != 2:
            raise ConfigError(f"train.betas is {list(self.betas)}, but must be two numbers, like [0.9, 0.999].")
        if self.optimizer != "sgd" and self.momentum:
            other = f"train.optimizer is {self.optimizer!r}, which has train.betas instead"
            raise ConfigError(f"train.momentum is {self.momentum:g}, but {other}.")
        if self.steps is not None and self.epochs != 1:
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs:g}, but only one can be set.")
        if len(set(self.augment)) < len(self.augment):
            raise ConfigError(f"train.augment is {[a.name for a in self.augment]}, but must name each change once.")


@dataclass(frozen=True)
class Sampling:
    """Who takes part in a round."""

    ratio: Share = 1.0
    """share of the clients that train in each round"""
    ratio_low: Share | None = None
    """if set, each round draws its share uniformly between ratio_low and ratio"""
    trace: str = ""
    """file that lists which clients are available, a line per round; ratio is then a share of these"""

    def check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if self.ratio_low is not None and self.ratio_low > self.ratio:
            limit = f"must be at most sampling.ratio, which is {self.ratio}"
            raise ConfigError(f"sampling.ratio_low is {self.ratio_low}, but {limit}.")

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
    """main metric: decides the best round and early stopping, leads tables and reports; none: the task's default, such
    as accuracy"""
    metrics: tuple[str, ...] = ()
    """further metrics; none: the task's defaults"""
    start: bool = True
    """also measure the clients' initial models, as round 0"""
    validation: Annotated[float, Range(0, 0.9)] = 0.0
    """share of the training samples that are set aside for validation, at each client without validation samples"""
    test_draw: Natural | None = None
    """for natural clients, the data_seed whose test samples all draws use, so that only training and validation samples
    are drawn anew; none: each draw has its own test samples"""


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
        match = re.fullmatch(r"(auto)|(threads:)?([1-9]\d{0,2})", str(value), re.ASCII)
        count = int(match[3] or 0) if match else 0
        if not match or isinstance(value, bool) or count > 256:
            raise ConfigError(f"{at} is {value!r}, but must be auto, a number from 1 to 256, or like threads:2.")
        return cls("auto" if match[1] else "threads" if match[2] else "processes", count)

    def to_plain(self) -> Any:
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


FAULTS = ("drop", "error", "slow", "twice", "stale", "nan", "inf", "names", "shapes", "dtypes", "norm", "samples")
"""what can be injected: a client does not answer, raises, is too slow, answers twice or for another round, or sends
values that are not finite, wrong names, shapes or types, a huge model, or a huge number of samples"""
STUDIES = {"fedah": "drop=0..0.9"}
"""faults from published studies, by name; FedAH: in each round a share of the clients drawn from [0.1, 1] is present"""


@dataclass(frozen=True)
class Inject(Parsed):
    """Injected faults: for each kind, the share of a round's clients that it affects."""

    shares: tuple[tuple[str, float, float], ...] = ()
    """kind, lowest and highest share; each round draws a share between the two"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a string such as ``drop=0.3,nan=0.05``; ``drop=0..0.9`` draws a new share in each round."""
        if not isinstance(value, str):
            raise ConfigError(f"{at} is {value!r}, but must be a string like drop=0.3,nan=0.05.")
        text = STUDIES.get(value, value)
        shares = tuple(_share_of(part.strip(), at) for part in text.split(",")) if text else ()
        if len({kind for kind, _, _ in shares}) < len(shares) or sum(high for _, _, high in shares) > 1 + 1e-9:
            raise ConfigError(
                f"{at} is {value!r}, but must name each kind at most once, with shares that add up to at most 1."
            )
        return cls(shares)

    def to_plain(self) -> str:
        return ",".join(f"{k}={low:g}" if low == high else f"{k}={low:g}..{high:g}" for k, low, high in self.shares)


def _share_of(part: str, at: str) -> tuple[str, float, float]:
    kind, _, share = part.partition("=")
    if kind not in FAULTS:
        raise ConfigError(f"{at} names {kind!r}: {nearest(kind, (*FAULTS, *STUDIES))}")
    number = r"(0|1|0?\.\d{1,9}|[01]\.0)"
    match = re.fullmatch(rf"{number}(?:\.\.{number})?", share, re.ASCII)
    low, high = (float(match[1]), float(match[2] or match[1])) if match else (1.0, 0.0)
    if low > high:
        raise ConfigError(f"{at} has {part!r}, but the share must be from 0 to 1, like {kind}=0.3 or {kind}=0..0.9.")
    return kind, low, high


@dataclass(frozen=True)
class Faults:
    """What to do when a client fails, and which failures to inject."""

    on_failure: Literal["stop", "skip", "retry"] | None = None
    """stop: end the run, and accept replies unchecked; skip: check replies, and continue without the clients that
    failed; retry: like skip, but first ask silent clients again; none: stop, or skip if faults are injected"""
    retries: Count = 2
    """how many times retry asks again"""
    min_replies: Natural = 1
    """replies that a round needs; with fewer, the run ends"""
    deadline: Positive | None = None
    """seconds a client may take; results then depend on the machine"""
    max_norm: Positive | None = None
    """largest allowed Euclidean norm of a client's message"""
    max_samples: Count = 10**7
    """largest number of training samples a client may claim"""
    inject: Inject = field(default_factory=Inject)
    """faults to inject, as shares of a round's clients: drop=0.3,nan=0.05,slow=0.1"""

    @property
    def reaction(self) -> Literal["stop", "skip", "retry"]:
        """`on_failure` with its default filled in."""
        return self.on_failure or ("skip" if self.inject.shares else "stop")


@dataclass(frozen=True)
class Origin:
    """The finished run that this one continues from; headwise run --from fills it in."""

    run: str = ""
    """its folder; none: this run begins anew"""
    hash: str = ""
    """of its manifest and its last checkpoint"""
    rounds: Natural = 0
    """how many rounds it had: draws and decay continue from there"""
    clients: tuple[str, ...] = ()
    """its clients, by name or else by number, in the order of their numbers; they keep these"""
    divided: Natural = 0
    """number of clients that the data is now divided among; 0: its natural clients"""


@dataclass(frozen=True)
class Drift:
    """Labels that change in the middle of a run."""

    round: Annotated[int, Range(0, 10**6)] = 0
    """the first round with other labels; 0: they never change"""
    what: Literal["swap", "vanish", "appear"] = "swap"
    """swap: a client's most frequent class and another one exchange their labels; vanish: its second most frequent
    class disappears; appear: that class occurs only from then on"""
    share: Unit = 1.0
    """share of the clients, drawn from the seed, whose labels change; at least one"""
    clients: tuple[Natural, ...] = ()
    """the numbers of these clients instead"""


@dataclass(frozen=True)
class TargetRange(Parsed):
    """``[0, 350]`` for one target, ``[[0, 350], [10, 20]]`` for two."""

    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        several = isinstance(value, list | tuple) and any(isinstance(pair, list | tuple) for pair in value)
        pairs: list[Any] = list(value) if several else [value]
        if not all(map(_is_pair, pairs)):
            raise ConfigError(
                f"{at} is {value!r}, but must be [lowest, highest], or a list with such a pair for each target."
            )
        return cls(tuple((float(low), float(high)) for low, high in pairs))

    def to_plain(self) -> list[list[float]]:
        return [list(pair) for pair in self.pairs]

    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Offset and scale of the targets: the middle and a quarter of the range, which map it to -2 to 2."""
        return tuple((low + high) / 2 for low, high in self.pairs), tuple((high - low) / 4 for low, high in self.pairs)


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    numbers = [v for v in value if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    return len(numbers) == 2 and numbers[0] < numbers[1]
