"""What a search may try: one dimension per setting, from the setting's own type or as the user writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from ..errors import ConfigError
from ..settings.experiment import Experiment
from ..settings.fields import Range, field_types, literal
from .registry import make

Scale = Literal["log", "uniform", "int", "choice"]
FACTOR = 30.0
"""how far from its default a positive number is searched in either direction"""
EXAMPLES = "train.lr=log:1e-3..1, train.epochs=int:1..10, method.mu=uniform:0..1 or train.optimizer=sgd,adam"


@dataclass(frozen=True)
class Dimension:
    """One setting, and the values it may take."""

    name: str
    scale: Scale
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.scale == "choice":
            return f"{self.name}={','.join(map(str, self.choices))}"
        return f"{self.name}={self.scale}:{self.low:g}..{self.high:g}"

    def contains(self, value: Any) -> bool:
        """Whether the search could choose this value."""
        if self.scale == "choice":
            return value in self.choices
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def suggest(self, trial: Any) -> Any:
        """The value that an Optuna trial chooses."""
        if self.scale == "choice":
            return trial.suggest_categorical(self.name, self.choices)
        if self.scale == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.low >= 1)
        return trial.suggest_float(self.name, self.low, self.high, log=self.scale == "log")


def parse_dimension(text: str) -> Dimension:
    """From ``train.lr=log:1e-3..1`` or ``train.optimizer=sgd,adam``."""
    name, sign, values = (part.strip() for part in text.partition("="))
    if not sign or not name or not values:
        raise ConfigError(f"space is {text!r}, but must look like {EXAMPLES}.")
    scale, colon, bounds = values.partition(":")
    if not colon or scale not in get_args(Scale):
        choices = tuple(literal(value.strip()) for value in values.split(","))
        if len(choices) < 2:
            raise ConfigError(f"space is {text!r}, which leaves nothing to search: give two values or a range.")
        return Dimension(name, "choice", choices=choices)
    low, dots, high = (literal(part) for part in bounds.partition(".."))
    numbers = all(isinstance(x, int if scale == "int" else (int, float)) for x in (low, high))
    if scale == "choice" or not dots or not numbers or not low < high or (scale == "log" and low <= 0):
        raise ConfigError(f"space is {text!r}, but must look like {EXAMPLES}.")
    return Dimension(name, scale, float(low), float(high))  # pyright: ignore[reportArgumentType]


def find_space(experiment: Experiment, given: Iterable[str] = ()) -> list[Dimension]:
    """The learning rate and the numbers among the method's own options; what is `given` replaces or joins them."""
    dimensions = {"train.lr": Dimension("train.lr", "log", 1e-3, 1.0)}
    method = make("method", experiment.method)
    for name, kind in field_types(type(method)).items():
        is_own = name in inspect.get_annotations(type(method))  # others share it, such as the server's optimiser
        if is_own and (dimension := _dimension(f"method.{name}", kind, getattr(method, name))):
            dimensions[dimension.name] = dimension
    dimensions |= {d.name: d for d in map(parse_dimension, given)}
    return [*dimensions.values()]


def _dimension(name: str, kind: Any, default: Any) -> Dimension | None:
    """Numbers with a range; options that make a variant of a method are not searched."""
    if get_origin(kind) is not Annotated or isinstance(default, bool) or not isinstance(default, (int, float)):
        return None
    base, *limits = get_args(kind)
    limit = next((each for each in limits if isinstance(each, Range)), None)
    if limit is None:
        return None
    if base is int:
        low = max(limit.low, 1, default // 4)
        high = min(limit.high, max(4 * default, 4))
        return Dimension(name, "int", low, high) if low < high else None
    if limit.high <= 1:
        return Dimension(name, "uniform", max(limit.low, 0.01) if limit.above else limit.low, limit.high)
    if default <= 0:
        return None
    return Dimension(name, "log", max(limit.low, default / FACTOR), min(limit.high, default * FACTOR))
