"""A model's inputs: turns a user's raw samples into the numbers that its program takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import MISSING
from ..data.own.raw import Form
from ..data.preprocessing import Fitted, Unknown, encode_samples, from_state, to_state
from ..errors import ConfigError, DataError

DTYPES = ("uint8", "int64", "float32", "float64")
FORMS = get_args(Form)
MOST = 2**27
"""values of one sample"""
DIGITS = 1000
"""if the mean is more than this many deviations, float32's seven digits are too few"""

_STEPS: dict[str, tuple[list[str], list[str]]] = {
    "number": (["fill and flag missing numbers", "scale numbers"], ["find missing cells"]),
    "category": (["one-hot coding"], ["number categories by their place in preprocessing.values"]),
    "text": (["count words"], ["split texts into words", "hash words by CRC-32"]),
    "tokens": ([], ["split texts into words", "hash words by CRC-32"]),
    "image": (["scale images"], ["decode and resize image files"]),
    "array": (["fill missing numbers", "scale numbers"], []),
}
"""what happens to each kind of column or sample: inside the program, and before it"""


class EncodedTable(NamedTuple):
    """Rows that `Inputs.encode` returned; a user's array has no column names."""

    x: NDArray[Any]


@dataclass(frozen=True)
class Inputs:
    """From raw samples to numbers; the program does the rest, so that they can be fed to it without Headwise."""

    shape: tuple[int, ...]
    """of one sample"""
    dtype: str
    mean: tuple[float, ...] = ()
    """with `std`, per channel: public images become (x / 255 - mean) / std"""
    std: tuple[float, ...] = ()
    fitted: Fitted | None = None
    """for a user's own data"""
    missing: tuple[str, ...] = MISSING
    """cells that stand for a missing value"""

    def encode(self, raw: Any, unknown: Unknown | None = None) -> NDArray[Any]:
        """A mapping of columns or a DataFrame, a list of texts or of image paths, or an array: [n, *shape].

        Unknown categories are counted in `unknown`.
        """
        if isinstance(raw, EncodedTable):
            return raw.x
        if self.form == "table" and _is_array(raw):
            names = ", ".join(column.name for column in self.fitted.recipe.columns) if self.fitted else ""
            raise DataError(
                "samples are an array, whose columns have no names, but this model was trained on a table: pass a "
                f"DataFrame or a mapping with the columns {names}."
            )
        if self.fitted is not None and not _is_array(raw):
            raw = encode_samples(self.fitted, raw, self.missing, unknown)
        x = np.asarray(raw)
        if x.shape[1:] != self.shape or x.dtype.kind not in "buif":
            given = f"{x.dtype} of shape {list(x.shape[1:])}"
            raise DataError(f"samples are {given}, but the model takes {self.dtype} of shape {list(self.shape)}.")
        if np.dtype(self.dtype).kind in "ui" and not _are_whole(x, np.iinfo(self.dtype)):
            raise DataError(f"samples are {x.dtype} with values that are not {self.dtype}, which the model takes.")
        return x.astype(self.dtype)

    @property
    def fits_float32(self) -> bool:
        """Whether float32 has enough digits for these numbers: it has not for times in seconds since 1970."""
        if self.fitted is None or self.dtype != "float64":
            return False
        return bool((np.abs(self.fitted.mean) <= DIGITS * self.fitted.std).all())

    @property
    def form(self) -> str:
        """table, tokens, image or array"""
        return self.fitted.recipe.form if self.fitted is not None else "array"

    def to_plain(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": list(self.mean),
            "std": list(self.std),
            "missing": list(self.missing),
            "preprocessing": None if self.fitted is None else to_state(self.fitted),
            **self.steps(),
        }

    def steps(self) -> dict[str, list[str]]:
        """The preprocessing steps inside the program, and those that `encode` does first because ONNX can't."""
        if self.fitted is None:
            return {"inside": ["scale images"] if self.mean else [], "outside": []}
        recipe = self.fitted.recipe
        if recipe.form == "array" and recipe.vocabulary:  # token numbers already
            return {"inside": [], "outside": []}
        kinds = {c.kind for c in recipe.columns} | ({recipe.form} if recipe.form != "table" else set())
        steps = [_STEPS[kind] for kind in _STEPS if kind in kinds]
        return {"inside": [s for inside, _ in steps for s in inside], "outside": [s for _, out in steps for s in out]}


def read_inputs(card: Mapping[str, Any]) -> Inputs:
    """The inputs of a card; raises `ConfigError` or `ValueError` if it is damaged."""
    state = card["preprocessing"]
    try:
        fitted = None if state is None else from_state(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ConfigError) as error:
        raise ValueError(f"its preprocessing can't be used: {type(error).__name__}: {error}") from error
    shape, mean, std = (tuple(card[name]) for name in ("shape", "mean", "std"))
    if card["dtype"] not in DTYPES:
        raise ValueError(f"its dtype is {card['dtype']!r}, but must be one of {', '.join(DTYPES)}")
    if min(shape, default=0) < 1 or math.prod(shape) > MOST:
        raise ValueError(f"its shape is {list(shape)[:9]}, but a sample must have from 1 to {MOST:,} values")
    if fitted is not None:
        _check_fitted(fitted, shape)
    elif {len(mean), len(std)} not in ({0}, {shape[0]}):
        raise ValueError(f"its mean and std must have none or {shape[0]} values")
    return Inputs(shape, card["dtype"], mean, std, fitted, tuple(card["missing"]))


def _check_fitted(fitted: Fitted, shape: tuple[int, ...]) -> None:
    recipe = fitted.recipe
    widths = [c.width for c in recipe.columns]
    expected = [recipe.options.length if c.kind == "text" else 1 for c in recipe.columns]
    for column in recipe.columns:
        values = fitted.values.get(column.name)
        if column.kind == "category" and not (values is not None and all(isinstance(v, str) for v in values)):
            raise ValueError(f"its preprocessing has no values of the category {column.name!r}")
    if recipe.form not in FORMS or recipe.shape != shape or widths != expected:
        raise ValueError("its preprocessing is of samples of another form or shape")
    if recipe.form == "table" and shape != (sum(widths),):
        raise ValueError(f"its preprocessing has {sum(widths)} columns, but its shape is {list(shape)}")
    if len(fitted.mean) != 1 or fitted.flags.shape != (recipe.scaled,):
        raise ValueError("its preprocessing must be that of one client")


def _is_array(raw: Any) -> bool:
    """Whether these are numbers already: an array or a tensor."""
    return hasattr(raw, "__array__") and hasattr(raw, "shape") and not hasattr(raw, "columns")


def _are_whole(x: NDArray[Any], limits: Any) -> bool:
    if x.dtype.kind == "f" and not (np.isfinite(x).all() and (x == np.floor(x)).all()):
        return False
    return not x.size or (limits.min <= x.min() and x.max() <= limits.max)
