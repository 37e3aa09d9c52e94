"""Synthetic — Headwise, 2025: Gaussian classes at sites that differ in labels, features and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...memory import check_memory
from ...settings.fields import Count, Natural, NonNegative, Range
from ...tasks.registry import kind_of
from ..dataset import Dataset, Source


@dataclass(frozen=True)
class Synthetic(Source):
    """Generated samples: one Gaussian cloud per class, seen differently by each site; or linear functions of them."""

    default_model: ClassVar[str] = "mlp"

    samples: Count = 2000
    "total number of samples over all sites"
    classes: Annotated[int, Range(2, 1000)] = 10
    "number of classes"
    features: Annotated[int, Range(1, 10_000)] = 20
    "number of features"
    separation: NonNegative = 4.0
    "typical distance between the centres of two classes, whose samples have standard deviation 1"
    sites: Count = 10
    "number of natural clients"
    label_alpha: Annotated[float, Range(0.001, 1e6)] = 0.5
    "how evenly a site's samples cover the classes (Dirichlet): small means few classes, large means all equally"
    feature_skew: Annotated[float, Range(0, 100)] = 0.0
    "how far each site rotates (in radians) and shifts the feature space; 0 means all sites see the same"
    quantity_skew: Annotated[float, Range(0, 10)] = 0.5
    "how unequal the sites' sizes are: the standard deviation of their logarithm; 0 means equal sizes"
    seed: Natural = 0
    "random seed: another seed draws other data of the same kind"
    task: Literal["classification", "multilabel", "regression"] = "classification"
    "what to predict: a sample's cloud, or linear functions of its features: their signs, or their values with noise"
    outputs: Annotated[int, Range(1, 1000)] = 3
    "number of labels or quantities, for tasks other than classification"
    only: Annotated[int, Range(-1, 10**9)] = -1
    "draw the samples of this site only; -1: all sites"

    def load(self, folder: Path) -> Dataset:
        """Draw the samples; `folder` is not used."""
        if self.samples < self.sites:
            raise DataError(f"samples is {self.samples}, but must be at least the number of sites, {self.sites}.")
        check_memory(  # float64 samples, twice while drawing, and a generator per site
            16 * self.samples * self.features + 1000 * self.sites,
            f"data with samples = {self.samples}, features = {self.features} and sites = {self.sites}",
        )
        rng = np.random.default_rng(self.seed)
        sizes = _draw_sizes(self.samples, self.sites, self.quantity_skew, rng)
        scale = self.separation / math.sqrt(2 * self.features)
        centres = scale * rng.standard_normal((self.classes, self.features))
        if self.only >= self.sites:
            raise DataError(f"only is {self.only}, but must be below the number of sites, {self.sites}.")
        drawn = [self.only] if self.only >= 0 else range(self.sites)
        rngs = rng.spawn(self.sites)
        known = None if self.task == "classification" else rng.standard_normal((self.features, self.outputs))
        ends = np.cumsum([sizes[k] for k in drawn])
        x = np.empty((ends[-1], self.features), np.float32)
        ys: list[NDArray[Any]] = []
        for k, end in zip(drawn, ends, strict=True):  # only one site at a time is in double precision
            x[end - sizes[k] : end], y = self._draw_site(int(sizes[k]), centres, known, rngs[k])
            ys.append(y)
        return Dataset(
            x,
            np.concatenate(ys),
            tuple(f"{kind_of(self.task).noun} {k}" for k in range(self.classes if known is None else self.outputs)),
            owner=np.repeat(np.arange(len(ys)), [len(y) for y in ys]),
            owners=tuple(f"site {k}" for k in drawn),
            task=self.task,
        )

    def _draw_site(
        self, n: int, centres: NDArray[np.float64], known: NDArray[np.float64] | None, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        shares = rng.dirichlet(np.full(self.classes, self.label_alpha))
        y = rng.choice(self.classes, size=n, p=shares)
        x = centres[y] + rng.standard_normal((n, self.features))
        seen = _shift(x, self.feature_skew, rng)
        if known is None:
            return seen, y.astype(np.int64)
        linear = x @ known / math.sqrt(self.features)
        if self.task == "multilabel":
            return seen, (linear > 0).astype(np.float32)
        return seen, (linear + 0.1 * rng.standard_normal(linear.shape)).astype(np.float32)


def _draw_sizes(samples: int, sites: int, skew: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Log-normal sizes, at least one each, that add up to `samples`."""
    weights = np.exp(skew * rng.standard_normal(sites))
    bounds = np.round(np.cumsum(weights) / weights.sum() * (samples - sites)).astype(np.int64)
    return 1 + np.diff(bounds, prepend=0)


def _shift(x: NDArray[np.float64], strength: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Rotate random pairs of coordinates by about `strength` radians, and shift all by about `strength`."""
    half = x.shape[1] // 2
    a, b = rng.permutation(x.shape[1])[: 2 * half].reshape(2, half)
    angle = strength * rng.standard_normal(half)
    turned = x + strength * rng.standard_normal(x.shape[1])
    turned[:, a] += (np.cos(angle) - 1) * x[:, a] - np.sin(angle) * x[:, b]
    turned[:, b] += np.sin(angle) * x[:, a] + (np.cos(angle) - 1) * x[:, b]
    return turned
