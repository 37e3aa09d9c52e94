"""Body and head of users' own networks, and what of them travels."""

from __future__ import annotations

import doctest
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import ConfigError
from headwise.models import split as split_module
from headwise.models.base import Task
from headwise.models.resnet18 import ResNet18
from headwise.models.split import SplitModel, has_batchnorm, split


class Nested(nn.Module):
    """A user's network: its classifier sits inside a submodule, its BatchNorm has an odd name."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(OrderedDict(a=nn.Conv2d(1, 4, 3), weird=nn.BatchNorm2d(4), c=nn.ReLU()))
        self.top = nn.Module()
        self.top.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.top.fc(self.features(x).mean(dim=(2, 3)))


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def train(net: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    net.train()(x).square().sum().backward()
    optimizer.step()


CASES = {
    "nested": (Nested, "top.fc", (6, 1, 5, 5)),
    "sequential": (sequential, "3", (6, 4)),
    "tuple-of-blocks": (lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))), "1.1", (6, 4)),
}


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("make", "head", "shape"), CASES.values(), ids=CASES)
def test_split_computes_the_same_bits(make, head, shape, mode) -> None:
    module = make().train(mode)
    net = split(module, head).train(mode)
    x = torch.randn(shape)
    assert torch.equal(net(x), module(x))
    assert torch.equal(net.head(net.body(x)), module(x))


@pytest.mark.parametrize(("make", "head", "shape"), CASES.values(), ids=CASES)
def test_split_leaves_the_users_module_alone(make, head, shape) -> None:
    module = make().eval()
    x = torch.randn(shape)
    layers = repr(module)
    before = {k: t.clone() for k, t in module.state_dict().items()}
    train(split(module, head), x)
    assert repr(module) == layers
    assert all(torch.equal(t, before[k]) for k, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_split_keeps_all_parameters_and_names_them_by_part() -> None:
    net = split(Nested(), "top.fc")
    assert set(net.params("head")) == {"head.weight", "head.bias"}
    assert all(k.startswith("body.features.") for k in net.params("body"))
    assert net.params().numel() == sum(p.numel() for p in Nested().parameters())


@pytest.mark.parametrize("wrong", ["fc", "", "top.fc.weight"])
def test_a_wrong_head_is_an_error_with_the_layers(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"Nested are: .*features\.weird.*top\.fc\.$"):
        split(Nested(), wrong)


def test_a_network_without_layers_has_no_head() -> None:
    with pytest.raises(ConfigError, match="layers of this Linear are: none"):
        split(nn.Linear(2, 2), "fc")


AFFINE = {"body.features.weird.weight", "body.features.weird.bias"}
STATISTICS = {f"body.features.weird.{s}" for s in ("running_mean", "running_var", "num_batches_tracked")}
OTHERS = {"body.features.a.weight", "body.features.a.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("policy", "names"),
    [("params", OTHERS | AFFINE), ("all", OTHERS | AFFINE | STATISTICS), ("local", OTHERS)],
)
def test_what_of_batchnorm_travels(policy, names: set[str]) -> None:
    net = split(Nested(), "top.fc")
    net.batchnorm = policy
    assert set(net.params()) == names
    assert set(net.params("body")) | set(net.params("head")) == names
    assert set(net.live()) == names - STATISTICS
    assert set(net.state()) == OTHERS | AFFINE | STATISTICS


def test_the_default_policy_is_params() -> None:
    net = split(sequential(), "3")
    assert not any("running" in k or "num_batches" in k for k in net.params())
    assert {"body.1.weight", "body.1.bias"} <= set(net.params())


def test_local_keeps_all_batchnorm_of_a_resnet() -> None:
    net = ResNet18().build(Task((1, 8, 8), 2))
    net.batchnorm = "local"
    convs = {f"body.{n}.weight" for n, m in net.body.named_modules() if isinstance(m, nn.Conv2d)}
    assert set(net.params("body")) == convs


def test_group_norm_is_no_batchnorm() -> None:
    net = SplitModel(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)), nn.Linear(4, 2))
    net.batchnorm = "local"
    assert "body.1.weight" in net.params()
    assert not has_batchnorm(net)
    assert has_batchnorm(Nested())


@pytest.mark.parametrize("policy", ["params", "all", "local"])
def test_snapshots_do_not_follow_training(policy) -> None:
    net = split(Nested(), "top.fc")
    net.batchnorm = policy
    params = net.params()
    state = net.state()
    kept = {k: t.clone() for k, t in state.items()}
    train(net, torch.randn(6, 1, 5, 5))
    assert all(torch.equal(params[k], kept[k]) for k in params)
    assert all(torch.equal(state[k], kept[k]) for k in state)
    assert not any(t.requires_grad for t in [*params.values(), *state.values()])
    assert not torch.equal(net.params()["head.weight"], kept["head.weight"])
    assert not torch.equal(net.state()["body.features.weird.running_mean"], kept["body.features.weird.running_mean"])


def test_writing_to_a_snapshot_does_not_reach_the_model() -> None:
    net = split(sequential(), "3")
    before = net.head.weight.detach().clone()
    params = net.params()
    params["head.weight"].add_(1)
    assert torch.equal(net.head.weight, before)
    assert torch.equal(params["head.weight"], before + 1)


def test_a_snapshot_of_a_part_does_not_hold_the_whole() -> None:
    net = split(sequential(), "3")
    net.head.weight.data = torch.randn(100, *net.head.weight.shape)[7]
    for t in net.params().values():
        assert t.untyped_storage().nbytes() == t.nbytes


def test_live_parameters_are_the_models_own() -> None:
    net = split(sequential(), "3")
    assert net.live("head")["head.weight"] is net.head.weight
    net.live().sq_norm().backward()
    assert net.head.weight.grad is not None


def test_state_restores_everything() -> None:
    net = split(sequential(), "3")
    other = split(sequential(), "3")
    train(net, torch.randn(6, 4))
    other.load_state_dict(dict(net.state()))
    x = torch.randn(3, 4)
    assert torch.equal(net.eval()(x), other.eval()(x))


class Scratch(nn.Module):
    """Buffers of both kinds; one tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("again", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale * self.scratch


@pytest.mark.parametrize("policy", ["params", "all", "local"])
def test_tied_and_scratch_tensors_do_no_harm(policy) -> None:
    body = Scratch()
    head = nn.Linear(4, 4)
    head.weight = body.fc.weight
    net = SplitModel(body, head)
    net.batchnorm = policy
    net(torch.randn(2, 4)).sum().backward()
    assert "body.fc.weight" in net.params()
    assert ("body.scale" in net.params()) is (policy == "all")
    assert not any("scratch" in k for k in [*net.params(), *net.state()])
    net.load_state_dict(dict(net.state()))
    assert net.head.weight is net.body.fc.weight


def test_the_examples_in_docstrings() -> None:
    examples = doctest.testmod(split_module)
    assert (examples.attempted >= 5, examples.failed) == (True, 0)
