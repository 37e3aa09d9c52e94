"""Shapes — Headwise, 2026: drawn discs, squares and crosses on a noisy background."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...memory import check_memory
from ...settings.fields import Count, Natural, NonNegative, Range
from ..dataset import Dataset, Source

NAMES = ("background", "disc", "square", "cross")


@dataclass(frozen=True)
class Shapes(Source):
    """A segmentation: made-up grey images with a shape or two, of kinds and brightness that differ by site."""

    default_model: ClassVar[str] = "fcn"

    samples: Count = 400
    "total number of images over all sites"
    size: Annotated[int, Range(8, 256)] = 16
    "height and width of an image"
    sites: Count = 8
    "number of natural clients"
    noise: NonNegative = 0.3
    "standard deviation of each pixel's noise; shapes are brighter than the background by 1"
    label_alpha: Annotated[float, Range(0.001, 1e6)] = 0.5
    "how evenly a site's shapes cover the three kinds (Dirichlet): small means one kind, large means all equally"
    seed: Natural = 0
    "random seed: another seed draws other images of the same kind"

    def load(self, folder: Path) -> Dataset:
        """Draw the images; `folder` is not used."""
        if self.samples < self.sites:
            raise DataError(f"samples is {self.samples}, but must be at least the number of sites, {self.sites}.")
        check_memory(40 * self.samples * self.size**2, f"data with samples = {self.samples} and size = {self.size}")
        owner = np.arange(self.samples) * self.sites // self.samples
        rngs = np.random.default_rng(self.seed).spawn(self.sites)
        drawn = [self._draw_site(int((owner == k).sum()), rng) for k, rng in enumerate(rngs)]
        return Dataset(
            np.concatenate([x for x, _ in drawn]),
            np.concatenate([y for _, y in drawn]),
            NAMES,
            owner=owner,
            owners=tuple(f"site {k}" for k in range(self.sites)),
            task="segmentation",
        )

    def _draw_site(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        shares = rng.dirichlet(np.full(3, self.label_alpha))
        light = rng.normal(0, 0.5)
        y = np.zeros((n, self.size, self.size), np.int64)
        for mask in y:
            for _ in range(rng.integers(1, 3)):
                kind = int(rng.choice(3, p=shares))
                mask[_draw_shape(kind, self.size, rng)] = kind + 1
        x = (y > 0) + light + self.noise * rng.standard_normal(y.shape)
        return x[:, None].astype(np.float32), y


def _draw_shape(kind: int, size: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """[size, size] the pixels of a shape at a random place, from a quarter to half as wide as the image."""
    radius = rng.uniform(size / 8, size / 4)
    row, column = rng.uniform(radius, size - 1 - radius, 2)
    up, across = np.abs(np.mgrid[:size, :size] - np.array([row, column])[:, None, None])
    if kind == 0:
        return up**2 + across**2 <= radius**2
    inside = (up <= radius) & (across <= radius)
    return inside if kind == 1 else inside & (np.minimum(up, across) <= radius / 3)
