"""Fits preprocessing from sums and counts that clients can add up; `states` saves the result as JSON.

    sums = [measure(recipe, x) for x in each client's training samples]
    fitted = fit(recipe, sum(sums, nothing(recipe)))            one state for all clients, or
    fitted = fit(recipe, sum(sums, nothing(recipe)), sums)      one for each
    apply(fitted, {"age": [61, None], "sex": ["f", "m"]})       float32 [2, width]; in states.py, with their JSON

Only counts, sums and the categories leave a client; each sum depends on that client's samples alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..own.description import Preprocess
from ..own.readers.raw import Form
from ..own.readers.values import BAG, bags
from .moments import Floats, mean_and_deviation, sums_from, sums_over


@dataclass(frozen=True)
class FeatureColumn:
    """A table's column: numbers, categories, or the words of texts."""

    name: str
    kind: Literal["number", "category", "text"]
    width: int = 1
    """how many columns of an encoded row it takes"""


@dataclass(frozen=True)
class Preprocessing:
    """What to do with the samples; nothing is fitted yet."""

    form: Form
    shape: tuple[int, ...]
    """of one encoded sample"""
    options: Preprocess
    columns: tuple[FeatureColumn, ...] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """what the codes in each category column stand for"""

    @property
    def vocabulary(self) -> int:
        """The number of different tokens if samples are token sequences, else 0."""
        whole = self.form == "array" and self.options.texts == "tokens"
        return self.options.buckets if whole or self.form == "tokens" else 0

    @property
    def scaled(self) -> int:
        """The number of means: one for each number column, feature or channel."""
        if self.vocabulary:
            return 0
        return sum(c.kind == "number" for c in self.columns) if self.form == "table" else self.shape[0]

    def places(self) -> list[tuple[FeatureColumn, int]]:
        """Each column with its offset in an encoded row."""
        ends = np.cumsum([c.width for c in self.columns]).tolist()
        return [(c, end - c.width) for c, end in zip(self.columns, ends, strict=True)]


@dataclass(frozen=True)
class Sums:
    """What one client, or several together, share about their training samples."""

    n: int
    numbers: Floats
    """[3, scaled]: the number of values present, their sum, and the sum of their squares"""
    values: Mapping[str, Mapping[str, int]]
    """for each category column, how often each category occurs"""
    targets: Floats
    """[3, targets]: the same of the targets, if they are quantities"""

    def __add__(self, other: Sums) -> Sums:
        values = {
            name: {v: mine.get(v, 0) + other.values[name].get(v, 0) for v in {**mine, **other.values[name]}}
            for name, mine in self.values.items()
        }
        return Sums(self.n + other.n, self.numbers + other.numbers, values, self.targets + other.targets)


def nothing(recipe: Preprocessing, targets: int = 0) -> Sums:
    """The sums of no samples."""
    values = {c.name: {} for c in recipe.columns if c.kind == "category"}
    return Sums(0, np.zeros((3, recipe.scaled)), values, np.zeros((3, targets)))


def measure(recipe: Preprocessing, x: NDArray[Any], y: NDArray[Any] | None = None) -> Sums:
    """The sums of one client's encoded samples, and of its targets if they are given."""
    numbers = sums_from(_numbers(recipe, x), np.zeros(1, np.int64))[0]
    targets = sums_over(y, [np.arange(len(y))]) if y is not None else np.zeros((3, 0))
    return Sums(len(x), numbers, _values(recipe, x), targets)


def _values(recipe: Preprocessing, x: NDArray[Any]) -> dict[str, dict[str, int]]:
    values: dict[str, dict[str, int]] = {}
    for column, at in recipe.places():
        if column.kind == "category":
            counts = np.bincount(x[:, at][~np.isnan(x[:, at])].astype(np.int64)).tolist()
            values[column.name] = {recipe.categories[column.name][k]: n for k, n in enumerate(counts) if n}
    return values


def fit_all(
    recipe: Preprocessing, x: NDArray[Any], trains: Sequence[NDArray[np.int64]], newcomers: Collection[int] = ()
) -> Fitted:
    """The result of `measure` and `fit` for these clients; the samples of newcomers count at most for themselves."""
    every, own = nothing(recipe), [nothing(recipe)] * (len(trains) if recipe.options.fit == "client" else 0)
    own = [measure(recipe, x[trains[c]]) if c in newcomers else sums for c, sums in enumerate(own)]
    for group in _groups([0 if c in newcomers else len(t) for c, t in enumerate(trains)]):
        rows = x[np.concatenate([trains[c] for c in group])]
        numbers = _numbers(recipe, rows)
        sizes = np.array([len(trains[c]) for c in group]) * (len(numbers) // len(rows))
        found = sums_from(numbers, np.cumsum(sizes) - sizes)
        for k, c in enumerate(group if own else ()):
            own[c] = Sums(len(trains[c]), found[k], {}, every.targets)
        added = np.add.accumulate(np.concatenate([every.numbers[None], found]), axis=0)[-1]  # client after client
        values = (every + replace(every, values=_values(recipe, rows))).values
        every = Sums(every.n + len(rows), added, values, every.targets)
    return fit(recipe, every, own)


def _groups(sizes: Sequence[int], rows: int = 65_536) -> Iterator[list[int]]:
    """Groups of clients with about `rows` samples together; clients without samples are left out."""
    group: list[int] = []
    held = 0
    for c, n in enumerate(sizes):
        if n:
            group.append(c)
            held += n
        if group and (held >= rows or c == len(sizes) - 1):
            yield group
            group, held = [], 0


def _numbers(recipe: Preprocessing, x: NDArray[Any]) -> Floats:
    """[rows, scaled]: the numbers to sum; for images, each pixel is a row with values from 0 to 1."""
    if recipe.form == "table":
        return x[:, [at for c, at in recipe.places() if c.kind == "number"]]
    if not recipe.scaled:
        return np.empty((len(x), 0))
    channels = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
    return channels / 255 if recipe.form == "image" else channels


def fit(recipe: Preprocessing, every: Sums, own: Sequence[Sums] = ()) -> Fitted:
    """Fit on everybody's sums; given each client's `own` sums, means and deviations are per client.

    Flagged columns and categories are the same for all clients, because they are the network's inputs.
    """
    scales = [_scale(recipe, sums) for sums in own or [every]]
    gaps = every.numbers[0] < every.n
    flags = gaps if recipe.options.flag and recipe.form == "table" else np.zeros_like(gaps)
    values = {name: tuple(sorted(found)) for name, found in every.values.items()}
    mean, std, fill = (np.stack(a) for a in zip(*scales, strict=True))
    return Fitted(recipe, mean, std, fill, flags, values)


def _scale(recipe: Preprocessing, sums: Sums) -> tuple[Floats, Floats, Floats]:
    """Mean, standard deviation, and what a missing number becomes; a constant column is only centred."""
    o = recipe.options
    mean, deviation = mean_and_deviation(sums.numbers)
    fill = mean if o.fill == "mean" else np.zeros_like(mean)
    if (o.images if recipe.form == "image" else o.numbers) != "standardise":
        return np.zeros_like(mean), np.ones_like(mean), fill
    return mean, deviation, fill


@dataclass(frozen=True)
class Fitted:
    """Fitted preprocessing: one row of means for all clients, or one row per client."""

    recipe: Preprocessing
    mean: Floats
    """[1 or clients, scaled]"""
    std: Floats
    fill: Floats
    """what a missing number becomes before it is scaled"""
    flags: NDArray[np.bool_]
    """[scaled] whether a number column gets a second one that marks missing values"""
    values: Mapping[str, Sequence[str]]
    """for each category column, the categories that are inputs"""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as the network takes it."""
        r = self.recipe
        if r.form != "table":
            return r.shape
        texts = sum(c.kind == "text" for c in r.columns) * min(r.options.buckets, BAG)
        return (r.scaled + int(self.flags.sum()) + sum(map(len, self.values.values())) + texts,)

    def of(self, client: int) -> Fitted:
        """One client's preprocessing, to save with its model."""
        k = client if len(self.mean) > 1 else 0
        return replace(self, mean=self.mean[k : k + 1], std=self.std[k : k + 1], fill=self.fill[k : k + 1])

    def transform(self, x: NDArray[Any], who: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Encoded samples as the network takes them; `who` is each sample's client, needed if clients differ."""
        r, rows = self.recipe, np.zeros(len(x), np.int64) if who is None or len(self.mean) == 1 else who
        if r.vocabulary:
            return x.astype(np.int64)
        if r.form == "table":
            return self._table(x, rows)
        trailing = (1,) * (x.ndim - 2)
        mean, std, fill = (a[rows].reshape(len(x), -1, *trailing) for a in (self.mean, self.std, self.fill))
        x = x.astype(np.float64) / 255 if r.form == "image" else x.astype(np.float64)
        x = np.where(np.isnan(x), fill, x)
        return ((x - mean) / std).astype(np.float32)

    def _table(self, x: Floats, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        parts: list[NDArray[Any]] = []
        k = 0
        for column, at in self.recipe.places():
            if column.kind == "number":
                parts += self._number(x[:, at], k, rows)
                k += 1
            elif column.kind == "category":
                parts.append(self._category(column.name, x[:, at]))
            else:
                parts.append(bags(x[:, at : at + column.width], min(self.recipe.options.buckets, BAG)))
        return np.concatenate([p.astype(np.float32) for p in parts], axis=1)

    def _number(self, x: Floats, k: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        gone = np.isnan(x)
        scaled = (np.where(gone, self.fill[rows, k], x) - self.mean[rows, k]) / self.std[rows, k]
        return [scaled[:, None], gone[:, None]] if self.flags[k] else [scaled[:, None]]

    def _category(self, name: str, codes: Floats) -> NDArray[np.float32]:
        """One-hot; the row of a missing or unknown category is zero."""
        values = self.values[name]
        place = {value: k for k, value in enumerate(values)}
        slots = np.array([place.get(v, -1) for v in self.recipe.categories[name]] + [-1])
        slot = slots[np.where(np.isnan(codes), -1, codes).astype(np.int64)]
        return (slot[:, None] == np.arange(len(values))).astype(np.float32)
