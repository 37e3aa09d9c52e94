"""Random changes to a batch of training samples, by `train.augment`: our own, for images, or a user's function.

Flips and crops are maps of rows and columns, so masks change together with their images. A user's function gets
`(x, rng)` and returns new samples, or `(x, y, rng)` and returns both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from ...errors import ConfigError
from ...settings.choices import Augmentation

AREAS = (0.02, 0.33)
"""share of an image that is erased"""
RATIOS = (0.3, 3.3)
"""height of what is erased, as a multiple of its width"""

Change = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def augment(x: Tensor, y: Tensor, changes: Sequence[Augmentation], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The changed samples of a batch and their targets; each kind of change in the order given."""
    for moves, group in groupby(changes, key=lambda a: a.name in MOVES):
        if moves:
            x, y = _images(x, y, [a.name for a in group], rng)
            continue
        for each in group:
            x, y = (erase(x, rng), y) if each.is_built_in else apply_function(x, y, each, rng)
    return x, y


def apply_function(x: Tensor, y: Tensor, change: Augmentation, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Apply a user's own function to a copy of a batch; it must return as many samples, of the same shape."""
    function = change.given
    if function is None:
        how = f"pass it again, as in headwise.resume(folder, augment={change.title})"
        raise ConfigError(f"train.augment is {change.title}, defined in a notebook or script: {how}.")
    both = len(inspect.signature(function).parameters) == 3
    result = function(x.clone(), *([y.clone()] if both else []), rng)
    pair = result if both and isinstance(result, tuple) else (result, y)
    for what, new, old in zip(("x", "y"), pair, (x, y), strict=False):
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            got = f"{new.dtype} of shape {list(new.shape)}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
            need = f"{old.dtype} of shape {list(old.shape)}, as it was given"
            raise ConfigError(
                f"train.augment is {change.name!r}, which returned {what} as {got}, but must return {need}."
            )
    return pair


def _images(x: Tensor, y: Tensor, names: Sequence[str], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [n, channels, height, width], each changed independently, and their targets, which may be masks."""
    n, _, height, width = x.shape
    rows = torch.arange(height).repeat(n, 1)
    columns = torch.arange(width).repeat(n, 1)
    for name in names:
        rows, columns = MOVES[name](rows, columns, rng)
    where = (torch.arange(n).view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1))
    where = tuple(i.to(x.device) for i in where)
    changed = torch.empty_like(x).copy_(x.permute(0, 2, 3, 1)[where].permute(0, 3, 1, 2))  # laid out as it was
    return changed, y[where] if y.shape[1:] == x.shape[2:] else y


def flip(rows: Tensor, columns: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Half of the images, mirrored from left to right."""
    chosen = torch.rand(len(rows), 1, generator=rng) < 0.5
    return rows, torch.where(chosen, columns.flip(1), columns)


def crop(rows: Tensor, columns: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image shifted by up to an eighth of its height and width, its edges repeated."""
    return _shift(rows, rng), _shift(columns, rng)


def _shift(places: Tensor, rng: torch.Generator) -> Tensor:
    n, size = places.shape
    most = max(1, round(size / 8))
    shifts = torch.randint(-most, most + 1, (n, 1), generator=rng)
    return places.gather(1, (torch.arange(size) + shifts).clamp(0, size - 1))


MOVES: dict[str, Change] = {"flip": flip, "crop": crop}


def erase(x: Tensor, rng: torch.Generator) -> Tensor:
    """Half of the images with a rectangle set to 0: its area and its shape are drawn, then its place."""
    n, _, height, width = x.shape
    chosen = torch.rand(n, generator=rng) < 0.5
    area = torch.empty(n).uniform_(*AREAS, generator=rng) * height * width
    ratio = torch.empty(n).uniform_(*map(math.log, RATIOS), generator=rng).exp()
    rows = _span(height, (area * ratio).sqrt(), rng)
    columns = _span(width, (area / ratio).sqrt(), rng)
    inside = rows.unsqueeze(2) & columns.unsqueeze(1) & chosen.view(-1, 1, 1)
    return x.masked_fill(inside.unsqueeze(1).to(x.device), 0)


def _span(size: int, lengths: Tensor, rng: torch.Generator) -> Tensor:
    """[n, size]: whether a place is in a random span of this length."""
    lengths = lengths.round().clamp(1, size)
    starts = (torch.rand(len(lengths), generator=rng) * (size - lengths + 1)).floor()
    places = torch.arange(size)
    return (places >= starts.unsqueeze(1)) & (places < (starts + lengths).unsqueeze(1))
