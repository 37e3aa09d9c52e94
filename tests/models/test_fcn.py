"""The small fully convolutional network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.errors import ConfigError
from headwise.models.base import Task
from headwise.models.fcn import FCN
from headwise.models.mlp import MLP


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 9, 21)])
def test_every_pixel_gets_a_score_for_each_class(shape: tuple[int, int, int]) -> None:
    model = FCN(channels=5, layers=3).build(Task(shape, 4, kind="segmentation"))
    assert model(torch.zeros(2, *shape)).shape == (2, 4, *shape[1:])
    assert isinstance(model.head, nn.Conv2d)
    assert model.head.kernel_size == (1, 1)
    assert model.width == 5


def test_a_pixel_sees_as_far_as_the_dilations_add_up_to() -> None:
    model = FCN(channels=4, layers=3).build(Task((1, 31, 31), 2, kind="segmentation"))
    x = torch.zeros(1, 1, 31, 31, requires_grad=True)
    model.body(x)[0, :, 15, 15].sum().backward()
    assert x.grad is not None
    rows = x.grad[0, 0].abs().sum(1).nonzero().flatten()
    assert int(rows.min()) >= 15 - 7
    assert int(rows.max()) <= 15 + 7  # 1 + 2 + 4


def test_only_pixels_have_such_scores() -> None:
    with pytest.raises(ConfigError, match="model is FCN, which takes images whose pixels have classes"):
        FCN().build(Task((1, 16, 16), 4))
    assert MLP().build(Task((6,), 2, kind="regression"))(torch.zeros(3, 6)).shape == (3, 2)
