"""Random changes to a batch of training images, by the names in `train.augment`.

A change says which row and column each pixel comes from, so targets for pixels change with their images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...settings.updates import Augmentation

Change = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def augmented(x: Tensor, y: Tensor, names: Sequence[Augmentation], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [n, channels, height, width], each changed on its own, and their targets, perhaps of their pixels."""
    n, _, height, width = x.shape
    rows, columns = torch.arange(height).repeat(n, 1), torch.arange(width).repeat(n, 1)
    for name in names:
        rows, columns = CHANGES[name](rows, columns, rng)
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
    return _shifted(rows, rng), _shifted(columns, rng)


def _shifted(places: Tensor, rng: torch.Generator) -> Tensor:
    n, size = places.shape
    most = max(1, round(size / 8))
    shifts = torch.randint(-most, most + 1, (n, 1), generator=rng)
    return places.gather(1, (torch.arange(size) + shifts).clamp(0, size - 1))


CHANGES: dict[Augmentation, Change] = {"flip": flip, "crop": crop}
