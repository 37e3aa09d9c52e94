"""`Experiment`: one frozen tree of everything a run depends on.

It is read from TOML and overrides, is the first thing written to the run's folder, and travels as a JSON string.
Unknown keys and wrong types are errors that suggest the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ..errors import ConfigError, HeadwiseError, nearest
from . import catalog
from .executors import check_name
from .faults import Faults
from .fields import Natural, Parsed, Range, Share, build, check_names, convert, dump, field_types
from .history import Drift, Origin
from .networks import NETWORK, made_network, own_network
from .options import Engine, Evaluate, Privacy, Robust, Sampling, Secure, Stop, TaskName, Train
from .target_range import TargetRange

_BASES: dict[catalog.Kind, tuple[str, str]] = {
    "method": ("contract.method", "Method"),
    "model": ("models.base", "Model"),
    "data": ("data.dataset", "Source"),
    "partition": ("data.partition.base", "Partition"),
}
"""the base class of each kind, by name because importing it needs torch"""
OWN = "own"
"""the source, and the split, of a user's own data"""


@dataclass(frozen=True)
class Choice(Parsed):
    """A method, model, data set or partition with its options: ``"fedrep"``, ``"dirichlet:0.1"`` or a table."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: tuple[str, ...] = ()
    """positional options, in field order"""
    given: Any = field(default=None, repr=False)
    """a network that was passed as an object"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a string, a table with a name, an instance, or a network as an object."""
        if isinstance(value, cls):
            return value
        if isinstance(value, type) and dataclasses.is_dataclass(value) and at in catalog.ROOMS:
            value = build(value, {}, at)
        if at.split("[")[0] in ("model", "server_model") and (own := own_network(value)):
            return cls(NETWORK, *own)
        if isinstance(value, str) and at == "data" and value.endswith(".toml"):  # a path may contain colons
            return cls(OWN, {"path": value})
        if isinstance(value, str) and value:
            name, *rest = value.split(":")
            named = dict(part.split("=", 1) for part in rest if "=" in part)
            options = {k.replace("-", "_"): literal(v) for k, v in named.items()}
            return cls(name, options, tuple(part for part in rest if "=" not in part))
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            options = {k: v for k, v in value.items() if k not in ("name", "values")}
            return cls(value["name"], options, convert(value.get("values", ()), tuple[str, ...], f"{at}.values"))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return cls(catalog.name_of(_kind(at), type(value)), dump(value))
        network = ", a network (torch.nn.Module)" if "model" in at else ""
        said = repr(value) if isinstance(value, (str, int, float, Mapping)) else f"a {type(value).__name__}"
        raise ConfigError(f"{at} is {said[:200]}, but must be a name{network} or a table with a name.")

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, **self.options, **({"values": list(self.values)} if self.values else {})}

    def make(self, kind: catalog.Kind) -> Any:
        """An instance, with its options checked."""
        if self.name == NETWORK and kind == "model":
            return made_network(self.options, self.given)
        name, _, preset = self.name.partition("@")
        cls = find_class(kind, name)
        fields = [f.name for f in dataclasses.fields(cls) if not f.kw_only]
        if len(self.values) > len(fields):
            raise ConfigError(
                f"{kind} is {':'.join([self.name, *self.values])!r}, but {self.name} has "
                f"{len(fields)} options ({', '.join(fields) or 'none'})."
            )
        given = dict(zip(fields, map(literal, self.values), strict=False))
        return build(cls, {**_preset(cls, preset, self.name, kind), **given, **self.options}, kind)

    def resolved(self, kind: catalog.Kind) -> Choice:
        """The same choice with every option spelled out and a user's own file as an absolute path."""
        if self.given is not None:
            return dataclasses.replace(self, options=dump(self.make(kind).stored))
        name = self.name.partition("@")[0]
        return Choice(str(Path(name).resolve()) if name.endswith(".py") else name, dump(self.make(kind)))


@dataclass(frozen=True)
class Experiment:
    """Everything a run depends on.

    >>> Experiment(method="fedrep", data="digits", partition="dirichlet:0.1").method.name
    'fedrep'
    """

    method: Choice = "fedavg"  # pyright: ignore[reportAssignmentType] # `__post_init__` makes it a Choice
    """how clients learn together"""
    data: Choice = "digits"  # pyright: ignore[reportAssignmentType]
    """the data set"""
    partition: Choice = None  # pyright: ignore[reportAssignmentType]
    """who gets which samples; none: dirichlet:0.1, or natural for a user's own data"""
    model: tuple[Choice, ...] = ()
    """the network; none: the data set's default; of several, client c gets number c modulo their count"""
    task: TaskName | None = None
    """what to predict: classes, labels (several per sample), quantities, or a class for each pixel; none: the data
    says it, or it is guessed from the target"""
    target_range: TargetRange | None = None
    """the lowest and highest value that a regression's target can have, such as [0, 350], or a list of such pairs;
    none: as the data says, or the mean and deviation of all clients' targets are measured"""
    server_model: Choice | None = None
    """the server's own network, for methods that share a smaller one; none: the same as the first client's"""
    split: str = ""
    """train/test, train:validation:test, or official for the data set's own test set; none: 75/25, or own for a
    user's own data: as data.toml says"""
    fraction: Share = 1.0
    """share of the data set to use"""
    clients: Annotated[int, Range(1, 10**6)] | None = None
    """number of clients; none: 20, or the data set's natural clients"""
    rounds: Annotated[int, Range(1, 10**6)] = 50
    """rounds of training"""
    seed: Natural = 0
    """seeds the initial model, the choice of clients and the order of samples"""
    data_seed: Natural = 0
    """seeds the partition; keep it fixed to compare methods and seeds on the same partition"""
    without: tuple[str, ...] = ()
    """clients, by name or number, that are left out as if they had never been there; the others keep their numbers"""
    buffers: Literal["params", "all", "local"] = "params"
    """what travels of BatchNorm: its parameters, its statistics as well, or nothing"""
    train: Train = field(default_factory=Train)
    sampling: Sampling = field(default_factory=Sampling)
    evaluate: Evaluate = field(default_factory=Evaluate)
    stop: Stop = field(default_factory=Stop)
    faults: Faults = field(default_factory=Faults)
    robust: Robust = field(default_factory=Robust)
    privacy: Privacy = field(default_factory=Privacy)
    secure: Secure = field(default_factory=Secure)
    engine: Engine = field(default_factory=Engine)
    origin: Origin = field(default_factory=Origin)
    drift: Drift = field(default_factory=Drift)

    def __post_init__(self) -> None:
        """Convert every field, and check what can be checked without loading data."""
        if not isinstance(self.model, (tuple, list)):
            object.__setattr__(self, "model", (self.model,))
        own = Choice.parse(self.data, "data").name == OWN
        for name, usual in (("partition", "natural" if own else "dirichlet:0.1"), ("split", OWN if own else "75/25")):
            object.__setattr__(self, name, usual if getattr(self, name) in (None, "") else getattr(self, name))
        for name, kind in field_types(type(self)).items():
            object.__setattr__(self, name, convert(getattr(self, name), kind, name))
        self.train.check_together()
        low, high = self.sampling.ratio_low, self.sampling.ratio
        if low is not None and low > high:
            raise ConfigError(f"sampling.ratio_low is {low}, but must be at most sampling.ratio, which is {high}.")
        kind, workers = self.engine.kind, self.engine.workers
        check_name(kind)
        if kind != "local" and workers.kind == "threads":
            raise ConfigError(f"engine.workers is {workers.plain()!r}, but engine.kind {kind!r} needs a number.")

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dump(self)

    def resolved(self) -> Experiment:
        """The same experiment with every option of its choices spelled out."""
        choices = {k: getattr(self, k).resolved(k) for k in ("method", "data", "partition")}
        server = self.server_model and self.server_model.resolved("model")
        models = tuple(m.resolved("model") for m in self.model)
        return dataclasses.replace(self, **choices, model=models, server_model=server)


def find_class(kind: catalog.Kind, name: str) -> type[Any]:
    """`catalog.find`, but also checks that a user's own class meets the contract of its kind."""
    try:
        cls = catalog.find(kind, name)
    except HeadwiseError:
        raise
    except Exception as error:  # a user's own file can raise anything
        raise ConfigError(f"{kind} is {name!r}, which can't be imported: {type(error).__name__}: {error}.") from error
    room, base = _BASES[kind]
    wanted = getattr(importlib.import_module(f"headwise.{room}"), base)
    if not issubclass(cls, wanted) or not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} must be a dataclass derived from {base}.")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} does not define {', '.join(missing)}.")
    try:
        field_types(cls)  # evaluates the annotations
    except Exception as error:  # and those can raise anything
        why = f"has a type that can't be resolved: {type(error).__name__}: {error}."
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} {why}") from error
    return cls


def experiment_from(values: Mapping[str, Any]) -> Experiment:
    """From plain values, as read from TOML or JSON."""
    check_names(Experiment, values)
    return Experiment(**values)


def literal(text: str) -> Any:
    """The text as a TOML value, or else as a string."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text


def _preset(cls: type[Any], preset: str, name: str, kind: str) -> Mapping[str, Any]:
    if not preset:
        return {}
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    if preset not in presets:
        raise ConfigError(f"{kind} is {name!r}, which has no such preset: {nearest(preset, presets)}")
    return presets[preset]


def _kind(at: str) -> catalog.Kind:
    name = at.split("[")[0].removeprefix("server_")
    assert name in catalog.ROOMS
    return name  # pyright: ignore[reportReturnType]
