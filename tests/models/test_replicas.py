"""Copies of networks have their own values, modes and hooks; everything else is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.app import registry
from headwise.models.base import Task
from headwise.models.replicas import replica
from headwise.settings.names import list_names

TASK = Task((3, 32, 32), 10)
WORDS = Task((20,), 4, 50)
PIXELS = Task((3, 32, 32), 10, kind="segmentation")


@pytest.mark.parametrize("name", list_names("model"))
def test_a_copy_computes_the_same_and_shares_nothing(name: str) -> None:
    task = {"fasttext": WORDS, "fcn": PIXELS}.get(name, TASK)
    net = registry.find("model", name)().build(task).eval()
    twin = replica(net, {})
    x = torch.randint(50, (2, 20)) if task is WORDS else torch.randn(2, *task.shape)
    assert torch.equal(twin(x), net(x))
    assert list(twin.state_dict()) == list(net.state_dict())
    assert [type(m) for m in twin.modules()] == [type(m) for m in net.modules()]
    own = {t.data_ptr() for t in net.state_dict().values()}
    assert not own & {t.data_ptr() for t in twin.state_dict().values()}
    assert all(p.requires_grad and p.is_leaf for p in twin.parameters())
    twin.train()
    assert not any(m.training for m in net.modules())


def test_given_values_are_taken_and_copied() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    given = {"0.weight": torch.ones(3, 2), "1.running_mean": torch.full((3,), 5.0)}
    twin = replica(net, given)
    assert torch.equal(twin.state_dict()["0.weight"], given["0.weight"])
    assert torch.equal(twin.state_dict()["1.running_mean"], given["1.running_mean"])
    assert torch.equal(twin.state_dict()["0.bias"], net.state_dict()["0.bias"])
    given["0.weight"].zero_()
    assert twin.state_dict()["0.weight"].sum() == 6


def test_a_copy_lies_in_memory_as_the_original() -> None:
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    twin = replica(net, {"weight": torch.ones(4, 3, 3, 3)})
    assert twin.weight.stride() == net.weight.stride() != (27, 9, 3, 1)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0.bias has the shape \(1,\), but must have \(3,\)"):
        replica(nn.Sequential(nn.Linear(2, 3)), {"0.bias": torch.ones(1)})


def test_what_is_tied_stays_tied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    net.append(net[0])
    twin = replica(net, {})
    assert twin[1].weight is twin[0].weight
    assert twin[2] is twin[0]
    assert twin[0].weight is not net[0].weight


def test_hooks_come_along_but_new_ones_stay_where_they_are_made() -> None:
    net = nn.Linear(2, 2)
    seen = list[str]()
    net.register_forward_hook(lambda *_: seen.append("from the start"))
    twin = replica(net, {})
    twin.register_forward_hook(lambda *_: seen.append("the copy's"))
    net(torch.zeros(1, 2))
    assert seen == ["from the start"]
    twin(torch.zeros(1, 2))
    assert seen == ["from the start"] * 2 + ["the copy's"]


class Listed(nn.Module):
    """Holds its layers a second time, where walking over modules does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.order = [self.first]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.order[0](x)


def test_networks_that_hold_other_things_are_copied_deeply() -> None:
    net = Listed()
    twin = replica(net, {"first.weight": torch.zeros(2, 2), "first.bias": torch.zeros(2)})
    assert twin.order[0] is twin.first
    assert torch.equal(twin(torch.ones(1, 2)), torch.zeros(1, 2))
    assert not torch.equal(net(torch.ones(1, 2)), torch.zeros(1, 2))
