"""Networks that tests import, as a user's package would define them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.models.base import Task


class Small(nn.Module):
    def __init__(self, classes: int = 2, hidden: int = 4) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(3, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x)))


def small(task: Task) -> nn.Module:
    return Small(task.classes)


def tall(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, num_classes))


class Added(nn.Module):
    """Its output is no layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.a(x))[:, :2]


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def broken() -> nn.Module:
    raise ValueError("oh")


def needy(width: int) -> nn.Module:
    return nn.Linear(width, 2)


def number() -> int:
    return 3
