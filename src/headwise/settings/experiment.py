"""`Experiment`: one frozen tree of everything a run depends on.

It is read from TOML and overrides, is the first thing written to the run's folder, and travels as a JSON string.
Unknown keys and wrong types are errors that suggest the nearest valid name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ..errors import ConfigError
from .choices import NATURAL, OWN, Choice
from .fields import Natural, Range, Share, check_names, convert, dump, field_types, literal
from .names import ROOMS, check_engine
from .options import (
    Drift,
    Engine,
    Evaluate,
    Faults,
    Origin,
    Privacy,
    Robust,
    Sampling,
    Secure,
    Stop,
    TargetRange,
    TaskName,
    Train,
)

LARGEST = 1 << 24
"""most characters of a TOML file"""


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
    """who gets which samples; none: dirichlet:0.1, or natural for your own data, heart-disease and office-caltech10"""
    model: tuple[Choice, ...] = ()
    """the network; none: the data set's default; of several, client c gets number c modulo their count"""
    task: TaskName | None = None
    """what to predict: classes, labels (several per sample), quantities, or a class for each pixel; none: as the
    data says, or guessed from the target"""
    target_range: TargetRange | None = None
    """the lowest and highest value that a regression's target can have, such as [0, 350], or a list of such pairs;
    none: as the data says, or from the mean and deviation of all clients' targets"""
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
    """clients to leave out, by name or number, as if they had never taken part; the others keep their numbers"""
    buffers: Literal["params", "all", "local"] = "params"
    """what clients send of BatchNorm: its parameters, its statistics as well, or nothing"""
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
        data = Choice.parse(self.data, "data").name
        if self.partition in (None, ""):
            object.__setattr__(self, "partition", "natural" if data in NATURAL else "dirichlet:0.1")
        if not self.split:
            object.__setattr__(self, "split", OWN if data == OWN else "75/25")
        for name, kind in field_types(type(self)).items():
            object.__setattr__(self, name, convert(getattr(self, name), kind, name))
        self.train.check_together()
        self.sampling.check_together()
        kind = self.engine.kind
        workers = self.engine.workers
        check_engine(kind)
        if kind != "local" and workers.kind == "threads":
            raise ConfigError(f"engine.workers is {workers.to_plain()!r}, but engine.kind {kind!r} needs a number.")

    @property
    def networks(self) -> tuple[Choice, ...]:
        """Those of the clients, and the server's if it has its own."""
        return (*self.model, *([self.server_model] if self.server_model else []))

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dump(self)


def experiment_from(values: Mapping[str, Any]) -> Experiment:
    """From plain values, as read from TOML or JSON."""
    check_names(Experiment, values)
    return Experiment(**values)


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings changed, such as ``{"train.lr": 0.1}``; objects that it holds stay."""
    for name, value in settings.items():
        experiment = _with_setting(experiment, name, value, name)
    return experiment


def _with_setting(node: Any, path: str, value: Any, at: str) -> Any:
    if isinstance(node, Choice):
        return replace(node, options={**node.options, path: value})
    name, _, rest = path.partition(".")
    if not is_dataclass(node) or isinstance(node, type):
        raise ConfigError(f"{at} is not a setting: {at.removesuffix(path).rstrip('.')} is not a table.")
    check_names(type(node), {name: value}, at.removesuffix(path).rstrip("."))
    if rest:
        value = _with_setting(getattr(node, name), rest, value, at)
    elif not (isinstance(node, Experiment) and name == "model"):  # a single model is a list of one
        value = convert(value, field_types(type(node))[name], at)
    return replace(node, **{name: value})


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ConfigError(f"{path} has more than {LARGEST:,} characters.")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: long numbers, deep tables
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def override(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """The values with ``a.b=c`` changes applied in order."""
    result = dict(values)
    for change in changes:
        path, sign, text = change.partition("=")
        if not sign or not path.strip():
            raise ConfigError(f"--set is {change!r}, but must look like train.lr=0.1.")
        put(result, path.strip(), literal(text.strip()))
    return result


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set ``a.b`` in nested tables; a name such as method = "fedrep" becomes a table when one of its options is set."""
    *tables, last = path.split(".")
    for name in tables:
        inner = values.get(name, {})
        if isinstance(inner, str) and name in ROOMS:
            inner = Choice.parse(inner, name).to_plain()
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{path} can't be set: {name} is {inner!r}, not a table.")
        values[name] = values = dict(inner)
    values[last] = value
