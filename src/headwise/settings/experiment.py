"""`Experiment`: one frozen tree that says everything a run depends on.

It is read from TOML and overrides, written into the run's folder before anything else, and crosses any wire as one
JSON text. Unknown keys and wrong types are errors that name the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ..errors import ConfigError, HeadwiseError, nearest
from . import catalog
from .executors import check_name
from .fields import Natural, Parsed, Range, Share, build, check_names, convert, dump, field_types
from .options import Engine, Evaluate, Faults, Privacy, Robust, Sampling, Secure, Stop, Train

_BASES: dict[catalog.Kind, tuple[str, str]] = {
    "method": ("contract.method", "Method"),
    "model": ("models.base", "Model"),
    "data": ("data.dataset", "Source"),
    "partition": ("data.partition.base", "Partition"),
}
"""the contract of each kind; by name, because importing them takes torch"""
OWN = "own"  # the source, and the split, of a user's own data


@dataclass(frozen=True)
class Choice(Parsed):
    """A method, model, data set or partition by name, with options: ``"fedrep"``, ``"dirichlet:0.1"`` or a table."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: tuple[str, ...] = ()
    """options given by position, in the order of the fields"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a text, a table with a name, or an instance of what is chosen."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value:
            return cls._from_text(value, at)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            options = {k: v for k, v in value.items() if k not in ("name", "values")}
            return cls(value["name"], options, convert(value.get("values", ()), tuple[str, ...], f"{at}.values"))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return cls(catalog.name_of(_kind(at), type(value)), dump(value))
        raise ConfigError(f"{at} is {value!r}, but must be a name, or a table with a name.")

    @classmethod
    def _from_text(cls, text: str, at: str) -> Self:
        if at == "data" and text.endswith(".toml"):  # whose path may have any character in it
            return cls(OWN, {"path": text})
        name, *rest = text.split(":")
        named = dict(part.split("=", 1) for part in rest if "=" in part)
        options = {k.replace("-", "_"): literal(v) for k, v in named.items()}
        return cls(name, options, tuple(part for part in rest if "=" not in part))

    def plain(self) -> dict[str, Any]:
        """A table with the name and what was given."""
        return {"name": self.name, **self.options, **({"values": list(self.values)} if self.values else {})}

    def make(self, kind: catalog.Kind) -> Any:
        """The thing itself, its options checked."""
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
        """The same with every option written out, and a user's own file by its full path."""
        name = self.name.partition("@")[0]
        return Choice(str(Path(name).resolve()) if name.endswith(".py") else name, dump(self.make(kind)))


@dataclass(frozen=True)
class Experiment:
    """Everything a run depends on.

    >>> Experiment(method="fedrep", data="digits", partition="dirichlet:0.1").method.name
    'fedrep'
    """

    method: Choice = "fedavg"  # pyright: ignore[reportAssignmentType] # texts and instances become choices below
    """how clients learn together"""
    data: Choice = "digits"  # pyright: ignore[reportAssignmentType]
    """the data set"""
    partition: Choice = None  # pyright: ignore[reportAssignmentType]
    """who gets which samples; none: dirichlet:0.1, or natural for a user's own data"""
    model: tuple[Choice, ...] = ()
    """the network; none: the data set's usual one; several: client c has number c modulo their count"""
    server_model: Choice | None = None
    """the server's own network, for methods that share a smaller one; none: the first client's"""
    split: str = ""
    """train/test or train:validation:test, or official for the data set's own test part; none: 75/25, or own for a
    user's own data: as data.toml says"""
    fraction: Share = 1.0
    """share of the data that is used at all"""
    clients: Annotated[int, Range(1, 10**6)] | None = None
    """number of clients; none: 20, or the data set's natural clients"""
    rounds: Annotated[int, Range(1, 10**6)] = 50
    """rounds of training"""
    seed: Natural = 0
    """of the initial model, the sampling of clients and the order of samples"""
    data_seed: Natural = 0
    """of the partition: keep it to compare methods and seeds on one partition"""
    buffers: Literal["params", "all", "local"] = "params"
    """what of BatchNorm travels: its parameters, its statistics too, or nothing of it"""
    train: Train = field(default_factory=Train)
    sampling: Sampling = field(default_factory=Sampling)
    evaluate: Evaluate = field(default_factory=Evaluate)
    stop: Stop = field(default_factory=Stop)
    faults: Faults = field(default_factory=Faults)
    robust: Robust = field(default_factory=Robust)
    privacy: Privacy = field(default_factory=Privacy)
    secure: Secure = field(default_factory=Secure)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        """Turn texts, tables and instances into choices, and check what can be checked without loading data."""
        if not isinstance(self.model, (tuple, list)):
            object.__setattr__(self, "model", (self.model,))
        own = Choice.parse(self.data, "data").name == OWN
        for name, usual in (("partition", "natural" if own else "dirichlet:0.1"), ("split", OWN if own else "75/25")):
            object.__setattr__(self, name, usual if getattr(self, name) in (None, "") else getattr(self, name))
        for name, kind in field_types(type(self)).items():
            object.__setattr__(self, name, convert(getattr(self, name), kind, name))
        low, high = self.sampling.ratio_low, self.sampling.ratio
        if low is not None and low > high:
            raise ConfigError(f"sampling.ratio_low is {low}, but must be at most sampling.ratio, which is {high}.")
        kind, workers = self.engine.kind, self.engine.workers
        check_name(kind)
        if kind != "local" and workers.kind == "threads":
            raise ConfigError(f"engine.workers is {workers.plain()!r}, but with engine.kind {kind!r} must be a number.")

    def plain(self) -> dict[str, Any]:
        """The tree as plain values, for JSON."""
        return dump(self)

    def resolved(self) -> Experiment:
        """The same with every option of method, data, partition and model written out."""
        found = {k: getattr(self, k).resolved(k) for k in ("method", "data", "partition")}
        server = self.server_model and self.server_model.resolved("model")
        models = tuple(m.resolved("model") for m in self.model)
        return dataclasses.replace(self, **found, model=models, server_model=server)


def find_class(kind: catalog.Kind, name: str) -> type[Any]:
    """The class of this name; one in a user's own file must be what its kind asks for."""
    try:
        cls = catalog.find(kind, name)
    except HeadwiseError:
        raise
    except Exception as error:  # a user's own file can fail in any way
        raise ConfigError(f"{kind} is {name!r}, which can't be imported: {type(error).__name__}: {error}.") from error
    room, base = _BASES[kind]
    wanted = getattr(importlib.import_module(f"headwise.{room}"), base)
    if not issubclass(cls, wanted) or not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} must be a dataclass that derives from {base}.")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} does not define {', '.join(missing)}.")
    try:
        field_types(cls)  # texts until somebody asks for them
    except Exception as error:  # a user's annotation can be anything
        why = f"has a type that can't be understood: {type(error).__name__}: {error}."
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} {why}") from error
    return cls


def experiment_from(values: Mapping[str, Any]) -> Experiment:
    """From plain values, as TOML and JSON give them."""
    check_names(Experiment, values)
    return Experiment(**values)


def read_toml(path: Path) -> dict[str, Any]:
    """The plain values in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # numbers too long and tables too deep are no TOMLDecodeError
        raise ConfigError(f"{path} is no valid TOML: {error}.") from error


def override(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Parsed values with ``a.b=c`` changes applied, in order."""
    found = dict(values)
    for change in changes:
        path, sign, text = change.partition("=")
        if not sign or not path.strip():
            raise ConfigError(f"--set is {change!r}, but must look like train.lr=0.1.")
        put(found, path.strip(), literal(text.strip()))
    return found


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set ``a.b`` in nested tables; a name such as method = "fedrep" becomes a table when an option of it is set."""
    *tables, last = path.split(".")
    for name in tables:
        inner = values.get(name, {})
        if isinstance(inner, str) and name in catalog.ROOMS:
            inner = Choice.parse(inner, name).plain()
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{path} can't be set: {name} is {inner!r}, not a table.")
        values[name] = values = dict(inner)
    values[last] = value


def literal(text: str) -> Any:
    """A value as TOML would write it; anything else is a text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text


def _preset(cls: type[Any], preset: str, name: str, kind: str) -> Mapping[str, Any]:
    """The options behind ``name@preset``."""
    if not preset:
        return {}
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    if preset not in presets:
        raise ConfigError(f"{kind} is {name!r}, which has no such preset: {nearest(preset, presets)}")
    return presets[preset]


def _kind(at: str) -> catalog.Kind:
    """Which kind of thing stands at this place of the tree."""
    name = at.split("[")[0].removeprefix("server_")
    assert name in catalog.ROOMS
    return name  # pyright: ignore[reportReturnType]
