"""Preprocessing: fitted from sums that clients can add up, shared between sites and saved with models as JSON.

    sums = [measure(recipe, x) for x in each client's training samples]
    fitted = fit(recipe, sum(sums, no_sums(recipe)))            one state for all clients, or
    fitted = fit(recipe, sum(sums, no_sums(recipe)), sums)      one for each
    fitted.transform(encode_samples(fitted, {"age": [61, None], "sex": ["f", "m"]}))        float32 [2, width]

Only counts, sums and the categories leave a client; each sum depends on that client's samples alone.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..disk.jsontext import to_json
from ..errors import ConfigError, DataError
from ..settings.fields import build, dump
from .own.description import MISSING, Preprocess
from .own.findings import raise_errors
from .own.images import Pictures
from .own.raw import Form
from .own.values import BAG, Hashing, cell_text, count_words, to_numbers

Floats = NDArray[np.float64]
ROWS = 65_536
"""samples that are summed at a time, about"""


def sum_rows(numbers: Floats, starts: NDArray[np.int64]) -> Floats:
    """[starts, 3, columns]: sums of the rows from each start to the next, with the bits that each client would get."""
    if not len(numbers):
        return np.zeros((len(starts), 3, numbers.shape[1]))
    present = ~np.isnan(numbers)
    filled = np.where(present, numbers, 0)
    terms = (present.astype(np.float64), filled, filled * filled)
    return np.stack([np.add.reduceat(term, starts, axis=0) for term in terms], axis=1)


def sum_clients(y: NDArray[Any], clients: Sequence[NDArray[np.int64]]) -> Floats:
    """[3, columns]: the sums of these clients' rows, client after client, as a server adds up those of sites."""
    rows = [c for c in clients if len(c)]
    sizes = np.array([len(c) for c in rows], np.int64)
    numbers = y[np.concatenate(rows)].astype(np.float64) if rows else np.empty((0, y.shape[1]))
    sums = sum_rows(numbers, np.cumsum(sizes) - sizes)
    return np.add.accumulate(np.concatenate([np.zeros((1, 3, y.shape[1])), sums]), axis=0)[-1]


def mean_and_deviation(sums: Floats) -> tuple[Floats, Floats]:
    """The mean and standard deviation of each column; a constant one has deviation 1."""
    count, total, square = sums
    n = np.maximum(count, 1)
    mean = total / n
    variance = square / n - mean * mean
    varies = variance > 1e-12 * np.maximum(mean * mean, 1e-12)
    return mean, np.sqrt(np.where(varies, variance, 1))


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the categories."""
        columns = [dump(c) for c in self.columns]
        return {"form": self.form, "shape": list(self.shape), "options": dump(self.options), "columns": columns}

    @staticmethod
    def from_dict(values: Mapping[str, Any], categories: Mapping[str, Sequence[str]]) -> Preprocessing:
        columns = tuple(build(FeatureColumn, c) for c in values["columns"])
        shape = tuple(map(int, values["shape"]))
        return Preprocessing(values["form"], shape, build(Preprocess, values["options"]), columns, categories)

    def list_places(self) -> list[tuple[FeatureColumn, int]]:
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


def no_sums(recipe: Preprocessing, targets: int = 0) -> Sums:
    values = {c.name: {} for c in recipe.columns if c.kind == "category"}
    return Sums(0, np.zeros((3, recipe.scaled)), values, np.zeros((3, targets)))


def measure(recipe: Preprocessing, x: NDArray[Any], y: NDArray[Any] | None = None) -> Sums:
    """The sums of one client's encoded samples, and of its targets if they are given."""
    numbers = sum_rows(_numbers_to_scale(recipe, x), np.zeros(1, np.int64))[0]
    targets = sum_clients(y, [np.arange(len(y))]) if y is not None else np.zeros((3, 0))
    return Sums(len(x), numbers, _count_categories(recipe, x), targets)


def _count_categories(recipe: Preprocessing, x: NDArray[Any]) -> dict[str, dict[str, int]]:
    values: dict[str, dict[str, int]] = {}
    for column, at in recipe.list_places():
        if column.kind == "category":
            counts = np.bincount(x[:, at][~np.isnan(x[:, at])].astype(np.int64)).tolist()
            values[column.name] = {recipe.categories[column.name][k]: n for k, n in enumerate(counts) if n}
    return values


def fit_all(
    recipe: Preprocessing, x: NDArray[Any], trains: Sequence[NDArray[np.int64]], newcomers: Collection[int] = ()
) -> Fitted:
    """The result of `measure` and `fit` for these clients; newcomers' samples affect at most their own scaling."""
    every = no_sums(recipe)
    own = [every] * (len(trains) if recipe.options.fit == "client" else 0)
    own = [measure(recipe, x[trains[c]]) if c in newcomers else sums for c, sums in enumerate(own)]
    low = np.full(recipe.scaled, np.inf)
    high = -low
    for group in _group_clients([0 if c in newcomers else len(t) for c, t in enumerate(trains)]):
        rows = x[np.concatenate([trains[c] for c in group])]
        numbers = _numbers_to_scale(recipe, rows)
        low = np.fmin(low, np.fmin.reduce(numbers))  # which leave out what is missing
        high = np.fmax(high, np.fmax.reduce(numbers))
        sizes = np.array([len(trains[c]) for c in group]) * (len(numbers) // len(rows))
        sums = sum_rows(numbers, np.cumsum(sizes) - sizes)
        for k, c in enumerate(group if own else ()):
            own[c] = Sums(len(trains[c]), sums[k], {}, every.targets)
        total = np.add.accumulate(np.concatenate([every.numbers[None], sums]), axis=0)[-1]  # client after client
        values = (every + replace(every, values=_count_categories(recipe, rows))).values
        every = Sums(every.n + len(rows), total, values, every.targets)
    _check_scale(recipe, every, low, high)
    return fit(recipe, every, own)


def _check_scale(recipe: Preprocessing, every: Sums, low: Floats, high: Floats) -> None:
    """Refuse numbers that differ too little for their size, such as the times of one hour in seconds since 1970."""
    _, std, _ = _fit_scale(recipe, every)
    lost = (std == 1) & (high - low > 10) & (recipe.options.numbers == "standardize")
    for k in np.flatnonzero(lost)[:1] if recipe.form != "image" else ():
        columns = [column.name for column in recipe.columns if column.kind == "number"]
        what = f"column {columns[k]!r}" if columns else f"feature {k}"
        raise DataError(
            f"{what} has numbers from {low[k]:.10g} to {high[k]:.10g}, which differ too little for their size to be "
            f"standardized: subtract {low[k]:.10g} first, or leave it out."
        )


def _group_clients(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Groups of clients with about `ROWS` samples together; clients without samples are left out."""
    group: list[int] = []
    held = 0
    for c, n in enumerate(sizes):
        if n:
            group.append(c)
            held += n
        if group and (held >= ROWS or c == len(sizes) - 1):
            yield group
            group = []
            held = 0


def _numbers_to_scale(recipe: Preprocessing, x: NDArray[Any]) -> Floats:
    """[rows, scaled]: the numbers to sum; for images, each pixel is a row with values from 0 to 1."""
    if recipe.form == "table":
        return x[:, [at for c, at in recipe.list_places() if c.kind == "number"]]
    if not recipe.scaled:
        return np.empty((len(x), 0))
    channels = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
    return channels / 255 if recipe.form == "image" else channels


def fit(recipe: Preprocessing, every: Sums, own: Sequence[Sums] = ()) -> Fitted:
    """Fit on everybody's sums; given each client's `own` sums, means and deviations are per client.

    Flagged columns and categories are the same for all clients, because they are the network's inputs.
    """
    scales = [_fit_scale(recipe, sums) for sums in own or [every]]
    gaps = every.numbers[0] < every.n
    flags = gaps if recipe.options.flag and recipe.form == "table" else np.zeros_like(gaps)
    values = {name: tuple(sorted(counts)) for name, counts in every.values.items()}
    mean, std, fill = (np.stack(a) for a in zip(*scales, strict=True))
    return Fitted(recipe, mean, std, fill, flags, values)


def _fit_scale(recipe: Preprocessing, sums: Sums) -> tuple[Floats, Floats, Floats]:
    """Mean, standard deviation, and what a missing number becomes; a constant column is only centred."""
    o = recipe.options
    mean, deviation = mean_and_deviation(sums.numbers)
    fill = mean if o.fill == "mean" else np.zeros_like(mean)
    if (o.images if recipe.form == "image" else o.numbers) != "standardize":
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

    def for_client(self, client: int) -> Fitted:
        """One client's preprocessing, to save with its model."""
        k = client if len(self.mean) > 1 else 0
        return replace(self, mean=self.mean[k : k + 1], std=self.std[k : k + 1], fill=self.fill[k : k + 1])

    def transform(self, x: NDArray[Any], who: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Encoded samples as the network takes them; `who` is each sample's client, needed if clients differ."""
        r = self.recipe
        rows = np.zeros(len(x), np.int64) if who is None or len(self.mean) == 1 else who
        if r.vocabulary:
            return x.astype(np.int64)
        if r.form == "table":
            return self._transform_table(x, rows)
        trailing = (1,) * (x.ndim - 2)
        mean, std, fill = (a[rows].reshape(len(x), -1, *trailing) for a in (self.mean, self.std, self.fill))
        x = x.astype(np.float64) / 255 if r.form == "image" else x.astype(np.float64)
        x = np.where(np.isnan(x), fill, x)
        return ((x - mean) / std).astype(np.float32)

    def _transform_table(self, x: Floats, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        parts: list[NDArray[Any]] = []
        k = 0
        for column, at in self.recipe.list_places():
            if column.kind == "number":
                parts += self._scale_number(x[:, at], k, rows)
                k += 1
            elif column.kind == "category":
                places = np.arange(len(self.values[column.name]))
                parts.append(self.renumber(column.name, x[:, at])[:, None] == places)
            else:
                parts.append(count_words(x[:, at : at + column.width], min(self.recipe.options.buckets, BAG)))
        return np.concatenate([p.astype(np.float32) for p in parts], axis=1)

    def _scale_number(self, x: Floats, k: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        gone = np.isnan(x)
        scaled = (np.where(gone, self.fill[rows, k], x) - self.mean[rows, k]) / self.std[rows, k]
        return [scaled[:, None], gone[:, None]] if self.flags[k] else [scaled[:, None]]

    def renumber(self, name: str, codes: NDArray[Any]) -> Floats:
        """The codes of a category column as places among the inputs; NaN where it is missing or not an input."""
        place = {value: float(k) for k, value in enumerate(self.values[name])}
        places = np.array([place.get(v, np.nan) for v in self.recipe.categories[name]] + [np.nan])
        return places[np.where(np.isnan(codes), -1, codes).astype(np.int64)]


FEW = 5
"""unknown categories that a warning names"""
Unknown = Counter[tuple[str, str]]
"""how often each category that training did not have occurs, by column and category"""


class CellError(DataError):
    """A cell that can't be used: its row, counted from 0, and what is wrong."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row}, {problem}")
        self.row = row
        self.problem = problem


def to_state(fitted: Fitted) -> dict[str, Any]:
    """Plain values for JSON; if clients differ, take `Fitted.for_client` first."""
    return {
        **fitted.recipe.to_dict(),
        "mean": fitted.mean.tolist(),
        "std": fitted.std.tolist(),
        "fill": fitted.fill.tolist(),
        "flags": fitted.flags.tolist(),
        "values": {name: list(values) for name, values in fitted.values.items()},
    }


def from_state(state: Mapping[str, Any]) -> Fitted:
    """The inverse of `to_state`; category codes become their positions among the inputs."""
    values = {name: tuple(each) for name, each in state["values"].items()}
    recipe = Preprocessing.from_dict(state, values)
    rows = len(state["mean"])
    mean, std, fill = (np.array(state[k], np.float64).reshape(rows, recipe.scaled) for k in ("mean", "std", "fill"))
    return Fitted(recipe, mean, std, fill, np.array(state["flags"], bool), values)


def encode_samples(
    state: Fitted, raw: Any, missing: Sequence[str] = MISSING, unknown: Unknown | None = None
) -> NDArray[Any]:
    """A user's raw samples as numbers, ready for `Fitted.transform`; for a state that `from_state` made.

    A table is a mapping of columns (or a DataFrame), texts are a list, images are paths or uint8
    [n, channels, height, width], arrays are arrays. Categories that training did not have count as missing, and are
    added to `unknown`.
    """
    r = state.recipe
    if r.form == "table":
        return _encode_table(state, raw, missing, Counter() if unknown is None else unknown)
    if r.form == "tokens" and not isinstance(raw, np.ndarray):
        return Hashing(r.options.buckets).encode(raw, r.options.length)
    if r.form == "image" and not isinstance(raw, np.ndarray):
        raw = _read_images(r, raw)
    x = np.asarray(raw)
    if x.dtype.kind not in "biuf":
        raise DataError(f"samples are of type {x.dtype}, but must be numbers.")
    if x.shape[1:] != r.shape:
        raise DataError(f"samples have the shape {list(x.shape[1:])}, but the model was trained on {list(r.shape)}.")
    return x


def warn_of_unknown(unknown: Unknown) -> None:
    """Warn of unknown categories, once for each column."""
    for name in dict.fromkeys(column for column, _ in unknown):
        counts = {value: n for (column, value), n in unknown.items() if column == name}
        examples = ", ".join(map(repr, [*counts][:FEW])) + (", ..." if len(counts) > FEW else "")
        logging.getLogger("headwise").warning(
            "Column %r: %s of its cells have categories that did not occur in training (%s), and count as missing.",
            name,
            f"{sum(counts.values()):,}",
            examples,
        )


def _encode_table(state: Fitted, raw: Any, missing: Sequence[str], unknown: Unknown) -> NDArray[np.float64]:
    """Columns of cells as one matrix of numbers."""
    r = state.recipe
    parts: list[NDArray[Any]] = []
    table = _read_columns(raw, [column.name for column in r.columns])
    for column in r.columns:
        cells = np.fromiter(table[column.name], dtype=object)
        if column.kind == "number":
            numbers, wrong = to_numbers(cells, missing)
            for i in wrong:
                raise CellError(i, f"column {column.name!r}: {cells[i]!r} is not a number.")
            for i in np.flatnonzero(np.isinf(numbers)):
                raise CellError(int(i), f"column {column.name!r}: {cells[i]!r} is infinite, but must be finite.")
            parts.append(numbers[:, None])
        elif column.kind == "category":
            place = {value: float(k) for k, value in enumerate(state.values[column.name])}
            texts = list(map(cell_text, cells))
            gaps = {*missing, "None", "nan"}
            unknown.update((column.name, t) for t in texts if t not in place and t not in gaps)
            parts.append(np.array([place.get(t, np.nan) for t in texts])[:, None])
        else:
            parts.append(Hashing(min(r.options.buckets, BAG)).encode(cells.tolist(), column.width))
    return np.concatenate([p.astype(np.float64) for p in parts], axis=1)


def _read_columns(raw: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of these columns, as many in each."""
    if not isinstance(raw, Mapping) and not hasattr(raw, "columns"):
        allowed = f"a DataFrame or a mapping of columns: {', '.join(names)}"
        raise DataError(f"samples are {type(raw).__name__}, but must be {allowed}.")
    given = {str(name): name for name in (raw if isinstance(raw, Mapping) else raw.columns)}
    columns: dict[str, Any] = {}
    for name in names:
        if name not in given:
            columns_given = f"the columns are {', '.join(given)}" if given else "there are no columns"
            raise DataError(f"column {name!r}, which the model was trained on, is missing: {columns_given}.")
        columns[name] = cells = raw[given[name]]
        if isinstance(cells, str) or not hasattr(cells, "__len__"):
            raise DataError(f"column {name!r} is {cells!r}, but must be a list with a cell for each sample.")
    if len({len(cells) for cells in columns.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(cells)}" for name, cells in columns.items())
        raise DataError(f"columns differ in length: {lengths}.")
    return {name: list(cells) for name, cells in columns.items()}


def _read_images(recipe: Preprocessing, paths: Sequence[str | Path]) -> NDArray[np.uint8]:
    channels, height, width = recipe.shape
    pictures = Pictures((height, width), channels)
    return np.stack([x for path in paths if (x := pictures.read(Path(path), raise_errors)) is not None])


LARGEST = 10**7
"""most characters of one client's sums"""


def sums_to_json(recipe: Preprocessing, sums: Sums) -> str:
    """The sums and the features they belong to, as JSON."""
    values = {name: dict(sorted(counts.items())) for name, counts in sums.values.items()}
    targets = {"targets": sums.targets.tolist()} if sums.targets.size else {}
    numbers = {"n": sums.n, "numbers": sums.numbers.tolist(), "values": values}
    return to_json({"of": recipe.to_dict(), **numbers, **targets}, sort_keys=True)


def sums_from_json(text: str) -> tuple[Preprocessing, Sums]:
    """The inverse; raises `DataError` if `sums_to_json` can't have written this text."""
    try:
        if len(text) > LARGEST:
            raise ValueError(f"they have more than {LARGEST:,} characters")
        content: dict[str, Any] = json.loads(text)
        recipe = Preprocessing.from_dict(content["of"], {})
        n = int(content["n"])
        numbers = np.array(content["numbers"], np.float64).reshape(3, recipe.scaled)
        values = {str(name): {str(v): int(k) for v, k in row.items()} for name, row in content["values"].items()}
        targets = np.array(content.get("targets", [[], [], []]), np.float64).reshape(3, -1)
        moments = np.concatenate([numbers, targets], axis=1)
        counts = [n, *moments[0], *(k for row in values.values() for k in row.values())]
        if not np.isfinite(moments).all() or min(counts) < 0 or (moments[2] < 0).any():
            raise ValueError("they are not counts and sums")
        if values.keys() != no_sums(recipe).values.keys():
            raise ValueError("their categories are not those of the columns")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, ConfigError) as error:
        raise DataError(f"sums for preprocessing can't be used: {error}.") from error
    return recipe, Sums(n, numbers, values, targets)


def describe_difference(a: str, b: str) -> str:
    """How the features, options or targets of `a` differ from those of `b`; "" if they are the same."""
    one, sums = sums_from_json(a)
    other, others = sums_from_json(b)
    kinds, expected = ({c.name: c.kind for c in recipe.columns} for recipe in (one, other))
    clauses = [f"{name!r} is missing" for name in expected.keys() - kinds.keys()]
    clauses += [f"{name!r} is only there" for name in kinds.keys() - expected.keys()]
    both = kinds.keys() & expected.keys()
    clauses += [f"{n!r} is a {kinds[n]}, not a {expected[n]}" for n in both if kinds[n] != expected[n]]
    mine = dump(one.options)
    theirs = dump(other.options)
    clauses += [f"{name} is {mine[name]!r}, not {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
    if sums.targets.shape != others.targets.shape:
        clauses.append(f"{sums.targets.shape[1]} targets, not {others.targets.shape[1]}")
    if not clauses and one != other:
        clauses.append(f"samples are {one.form}s of {list(one.shape)}, not {other.form}s of {list(other.shape)}")
    return ", ".join(sorted(clauses))


def add_sums(texts: Sequence[str]) -> str:
    """The sums of all clients together, in this order."""
    recipe, first = sums_from_json(texts[0])
    total = sum((sums_from_json(text)[1] for text in texts), no_sums(recipe, first.targets.shape[1]))
    return sums_to_json(recipe, total)


def sums_for(recipe: Preprocessing, text: str) -> Sums:
    """The sums in `text`, which must belong to the same features."""
    shared, sums = sums_from_json(text)
    if shared != replace(recipe, categories={}):
        raise DataError("the federation's sums belong to other features, or other preprocessing, than this data.")
    return sums


def find_privacy_objection(recipe: Preprocessing, missing: bool) -> str:
    """Why privacy forbids this preprocessing: what fitting reveals about clients' samples; "" if nothing.

    `missing` says whether some samples have missing values.
    """
    o = recipe.options
    is_table = recipe.form == "table"
    scales = (o.images if recipe.form == "image" else o.numbers) == "standardize"
    if o.fit == "pooled" and recipe.scaled and (scales or (missing and o.fill == "mean")):
        return "preprocess.fit is 'pooled': set it to 'client'"
    if is_table and missing and o.flag:
        return "preprocess.flag reveals which columns have missing values: set it to false"
    if is_table and any(c.kind == "category" for c in recipe.columns):
        return "the categories of all clients become inputs: make them numbers"
    return ""
