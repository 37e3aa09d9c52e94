"""Sums for preprocessing as text, which sites tell and the server adds up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...disk.jsontext import to_json
from ...errors import ConfigError, DataError
from ...settings.fields import build, dump
from ..own.description import Preprocess
from .fitting import FeatureColumn, Preprocessing, Sums, nothing

LARGEST = 10**7
"""most characters of one client's sums"""


def written(recipe: Preprocessing, sums: Sums) -> str:
    """The sums and what they are of, as JSON."""
    of = {
        "form": recipe.form,
        "shape": list(recipe.shape),
        "options": dump(recipe.options),
        "columns": [dump(c) for c in recipe.columns],
    }
    values = {name: dict(sorted(counts.items())) for name, counts in sums.values.items()}
    targets = {"targets": sums.targets.tolist()} if sums.targets.size else {}
    numbers = {"n": sums.n, "numbers": sums.numbers.tolist(), "values": values}
    return to_json({"of": of, **numbers, **targets}, sort_keys=True)


def read(text: str) -> tuple[Preprocessing, Sums]:
    """The inverse; a `DataError` if it is nothing that `written` could have written."""
    try:
        if len(text) > LARGEST:
            raise ValueError(f"they have more than {LARGEST:,} characters")
        said: dict[str, Any] = json.loads(text)
        of, n = said["of"], int(said["n"])
        columns = tuple(build(FeatureColumn, c) for c in of["columns"])
        recipe = Preprocessing(of["form"], tuple(map(int, of["shape"])), build(Preprocess, of["options"]), columns)
        numbers = np.array(said["numbers"], np.float64).reshape(3, recipe.scaled)
        values = {str(name): {str(v): int(k) for v, k in found.items()} for name, found in said["values"].items()}
        targets = np.array(said.get("targets", [[], [], []]), np.float64).reshape(3, -1)
        every = np.concatenate([numbers, targets], axis=1)
        counts = [n, *every[0], *(k for found in values.values() for k in found.values())]
        if not np.isfinite(every).all() or min(counts) < 0 or (every[2] < 0).any():
            raise ValueError("they are not counts and sums")
        if values.keys() != nothing(recipe).values.keys():
            raise ValueError("their categories are not those of the columns")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, ConfigError) as error:
        raise DataError(f"sums for preprocessing can't be used: {error}.") from error
    return recipe, Sums(n, numbers, values, targets)


def difference(a: str, b: str) -> str:
    """How the features, options or targets of `a` differ from those of `b`; "" if they are the same."""
    (one, sums), (other, others) = read(a), read(b)
    kinds, expected = ({c.name: c.kind for c in recipe.columns} for recipe in (one, other))
    said = [f"{name!r} is missing" for name in expected.keys() - kinds.keys()]
    said += [f"{name!r} is only there" for name in kinds.keys() - expected.keys()]
    both = kinds.keys() & expected.keys()
    said += [f"{n!r} is a {kinds[n]}, not a {expected[n]}" for n in both if kinds[n] != expected[n]]
    mine, theirs = dump(one.options), dump(other.options)
    said += [f"{name} is {mine[name]!r}, not {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
    if sums.targets.shape != others.targets.shape:
        said.append(f"{sums.targets.shape[1]} targets, not {others.targets.shape[1]}")
    if not said and one != other:
        said.append(f"samples are {one.form}s of {list(one.shape)}, not {other.form}s of {list(other.shape)}")
    return ", ".join(sorted(said))


def added(texts: Sequence[str]) -> str:
    """The sums of all clients together, in this order."""
    recipe, first = read(texts[0])
    return written(recipe, sum((read(text)[1] for text in texts), nothing(recipe, first.targets.shape[1])))


def matching(recipe: Preprocessing, text: str) -> Sums:
    """The sums, which must be those of the same features."""
    said, sums = read(text)
    if (said.form, said.shape, said.options, said.columns) != (
        recipe.form, recipe.shape, recipe.options, recipe.columns
    ):  # fmt: skip
        raise DataError("the federation's sums are of other features, or for other preprocessing, than this data.")
    return sums


def reveals(recipe: Preprocessing, missing: bool) -> str:
    """What fitting tells about clients' samples, some with `missing` values; why to refuse it under privacy, or ""."""
    o, table = recipe.options, recipe.form == "table"
    scales = (o.images if recipe.form == "image" else o.numbers) == "standardise"
    if o.fit == "pooled" and recipe.scaled and (scales or (missing and o.fill == "mean")):
        return "preprocess.fit is 'pooled': set it to 'client'"
    if table and missing and o.flag:
        return "preprocess.flag tells which columns have missing values: set it to false"
    if table and any(c.kind == "category" for c in recipe.columns):
        return "the categories of all clients become inputs: make them numbers"
    return ""
