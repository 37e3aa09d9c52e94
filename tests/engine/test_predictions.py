"""Passes without gradients: large, in evaluation mode, one client's samples at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.engine.client.scoring import compute_outputs


def test_a_pass_has_no_more_rows_than_asked_for() -> None:
    sizes: list[int] = []

    def network(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    x = torch.randn(100, 2)
    assert torch.equal(compute_outputs(network, x, 40, fast=True), x)
    assert torch.equal(compute_outputs(network, x[:3], 40, fast=True), x[:3])
    assert sizes == [40, 40, 20, 3]


def test_a_network_is_asked_in_evaluation_mode_and_without_gradients() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9)).train()
    seen: list[bool] = []
    net.register_forward_hook(lambda *_: seen.append(net.training or torch.is_grad_enabled()))
    compute_outputs(net, torch.randn(4, 3), 2, fast=True)
    assert seen == [False, False]
