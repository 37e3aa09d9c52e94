"""What every family promises: shapes, features, initialization, and one sentence for a task that does not fit."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, relu

from headwise.app import registry
from headwise.errors import ConfigError
from headwise.models.base import Model, Task
from headwise.models.cnn import CNN
from headwise.models.fasttext import FastText
from headwise.models.fedgh_cnn import FedGHCNN
from headwise.models.lenet5 import LeNet5
from headwise.models.linear import Linear
from headwise.models.mlp import MLP
from headwise.models.resnet18 import ResNet18
from headwise.models.split import SplitModel
from headwise.settings.fields import check, field_help, field_types
from headwise.settings.names import list_names

IMAGE = Task((3, 32, 32), 7)
TEXT = Task((12,), 4, vocabulary=50)

# model, task, feature width, whether the features come from a ReLU
FAMILIES: dict[str, tuple[Model, Task, int, bool]] = {
    "cnn": (CNN(), IMAGE, 512, True),
    "cnn-oblong": (CNN(), Task((2, 16, 21), 3), 512, True),
    **{f"fedgh-{v}": (FedGHCNN(v), IMAGE, 500, True) for v in (1, 2, 3, 4, 5)},
    "lenet5": (LeNet5(), IMAGE, 84, True),
    "lenet5-wide": (LeNet5("wide"), IMAGE, 64, True),
    "resnet18": (ResNet18(), IMAGE, 512, True),
    "resnet18-cifar": (ResNet18("cifar"), Task((1, 8, 8), 2), 512, True),
    "resnet18-500": (ResNet18(representation=500), IMAGE, 500, True),
    "resnet18-group": (ResNet18(norm="group"), IMAGE, 512, True),
    "fasttext": (FastText(), TEXT, 32, False),
    "fasttext-sparse": (FastText(sparse=True), TEXT, 32, False),
    "mlp": (MLP(), IMAGE, 64, True),
    "mlp-deep": (MLP(hidden=9, layers=3), Task((5,), 2), 9, True),
    "linear": (Linear(), IMAGE, 3 * 32 * 32, False),
}
family = pytest.mark.parametrize(("model", "task", "width", "relu"), FAMILIES.values(), ids=FAMILIES)
LIGHT = ["cnn", "fedgh-5", "lenet5", "fasttext", "mlp-deep", "linear"]
light = pytest.mark.parametrize("name", LIGHT)
NAMES = ["cnn", "fasttext", "fedgh-cnn", "lenet5", "linear", "mlp", "resnet18"]


def build(model: Model, task: Task, seed: int = 0) -> SplitModel:
    torch.manual_seed(seed)
    return model.build(task)


def batch(task: Task, n: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if task.vocabulary:
        return torch.randint(task.vocabulary, (n, *task.shape), generator=generator, dtype=torch.int32)
    return torch.randn((n, *task.shape), generator=generator)


@family
def test_shapes_and_features(model: Model, task: Task, width: int, relu: bool) -> None:
    net = build(model, task).eval()
    x = batch(task)
    features = net.body(x)
    assert features.shape == (2, width)
    assert net(x).shape == (2, task.classes)
    assert torch.equal(net(x), net.head(features))
    assert bool((features >= 0).all()) is relu
    assert features.std() > 0


@family
def test_the_head_is_one_linear_layer_with_bias(model: Model, task: Task, width: int, relu: bool) -> None:
    net = build(model, task)
    assert type(net.head) is nn.Linear
    assert (net.head.in_features, net.head.out_features) == (width, task.classes)
    assert set(net.params("head")) == {"head.weight", "head.bias"}


@light
def test_all_parameters_learn(name: str) -> None:
    model, task, *_ = FAMILIES[name]
    net = build(model, task)
    net(batch(task, 8)).logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_resnet_learns_from_one_batch() -> None:
    task = Task((1, 8, 8), 2)
    net = build(ResNet18(), task)
    x = batch(task)
    nn.functional.cross_entropy(net(x), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None for p in net.parameters())


@light
def test_same_seed_same_weights(name: str) -> None:
    model, task, *_ = FAMILIES[name]
    a, b, other = (build(model, task, seed).state() for seed in (3, 3, 4))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not all(torch.equal(a[k], other[k]) for k in a)


@pytest.mark.parametrize("name", ["cnn", "fedgh-1", "lenet5", "lenet5-wide", "mlp", "linear"])
def test_initialization_is_uniform_within_torchs_bound(name: str) -> None:
    for layer in build(*FAMILIES[name][:2]).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            assert layer.weight.abs().max() <= bound
            assert layer.bias is not None
            assert layer.bias.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_cnn_draws_its_layers_from_input_to_output() -> None:
    net = build(CNN(), IMAGE, seed=5)
    torch.manual_seed(5)
    plain = [nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5), nn.Linear(1600, 512), nn.Linear(512, 7)]
    drawn = [p for layer in plain for p in layer.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), drawn, strict=True))


def test_cnn_learns_the_same_as_with_relu_before_pooling() -> None:
    """The published order of layers; with pixels that are exactly zero, where the order could matter."""
    net = build(CNN(), IMAGE, seed=5)
    x = torch.randn(6, *IMAGE.shape).clamp(min=0)
    with torch.no_grad():
        net.body[0].bias.zero_()
    w = list(net.parameters())

    def published(x: Tensor) -> Tensor:
        h = max_pool2d(relu(conv2d(x, w[0], w[1])), 2)
        h = max_pool2d(relu(conv2d(h, w[2], w[3])), 2)
        return linear(relu(linear(h.flatten(1), w[4], w[5])), w[6], w[7])

    x[:2] = 0
    y = torch.arange(6)
    ours, theirs = (torch.autograd.grad(cross_entropy(f(x), y), w) for f in (net, published))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_resnet_is_initialized_as_in_torchvision() -> None:
    net = build(ResNet18(), IMAGE)
    for layer in net.body.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * math.prod(layer.kernel_size)
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
            assert layer.bias is None
        if isinstance(layer, nn.BatchNorm2d):
            assert bool((layer.weight == 1).all())
            assert bool((layer.bias == 0).all())


def test_resnet_layout() -> None:
    body = build(ResNet18(), Task((3, 64, 64), 2)).eval().body
    assert isinstance(body, nn.Sequential)
    x = torch.zeros(1, 3, 64, 64)
    sizes = list[tuple[int, ...]]()
    for layer in body:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    stages = [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
    assert sizes[3:12] == [stages[0], *(s for s in stages for _ in range(2))]


def test_fasttext_counts_the_padding_in_its_mean() -> None:
    net = build(FastText(), TEXT)
    words, mean, _ = net.body  # pyright: ignore[reportGeneralTypeIssues]
    text = torch.tensor([[3, 5] + [0] * 10])
    assert torch.allclose(mean(words(text)), (words.weight[3] + words.weight[5])[None] / 12)


@pytest.mark.parametrize("sparse", [False, True])
def test_fasttext_never_trains_its_padding(sparse: bool) -> None:
    net = build(FastText(sparse), TEXT)
    words = net.body[0]
    net(torch.tensor([[3, 5] + [0] * 10])).sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    assert words.weight.grad.is_sparse is sparse
    assert bool((words.weight[0] == 0).all())


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        (CNN(), Task((3, 15, 32), 2), "CNN, which takes images .* at least 16 x 16 pixels, not shape \\(3, 15, 32\\)"),
        (CNN(), Task((784,), 2), "CNN, which takes images .*, not shape \\(784,\\)"),
        (FedGHCNN(2), Task((3, 32, 8), 2), "FedGHCNN, .*at least 16 x 16"),
        (LeNet5(), Task((28, 28), 2), "LeNet5, .*\\(28, 28\\)"),
        (ResNet18(), TEXT, "ResNet18, .*\\(12,\\) and vocabulary 50"),
        (
            FastText(),
            Task((200,), 4),
            "FastText, which takes texts .*at least 1, not shape \\(200,\\) and vocabulary 0",
        ),
        (FastText(), IMAGE, "FastText, which takes texts"),
        (MLP(), TEXT, "MLP, which takes images or features"),
        (Linear(), TEXT, "Linear, which takes images or features"),
    ],
)
def test_a_task_that_does_not_fit_is_one_sentence(model: Model, task: Task, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        model.build(task)
    text = str(caught.value)
    assert text.endswith(".")
    assert ". " not in text


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(16, 40), st.integers(16, 40), st.integers(1, 5))
def test_small_cnns_take_any_image_of_16_pixels_and_more(c: int, h: int, w: int, classes: int) -> None:
    task = Task((c, h, w), classes)
    assert build(LeNet5(), task)(batch(task, 1)).shape == (1, classes)


def test_the_catalog_finds_all_families() -> None:
    assert set(NAMES) <= set(list_names("model"))
    assert not {"parts", "split", "base"} & set(list_names("model"))


@pytest.mark.parametrize("name", NAMES)
def test_a_family_explains_itself(name: str) -> None:
    cls = registry.find("model", name)
    entry = registry.read_card("model", name)
    assert issubclass(cls, Model)
    assert dataclasses.is_dataclass(cls)
    check(cls())
    assert " — " in entry.title
    assert "https://" in entry.title
    assert entry.summary.endswith(".")
    assert field_help(cls).keys() == field_types(cls).keys()
    assert not inspect.isabstract(cls)


def test_the_depth_of_a_head_moves_layers_and_changes_no_weight() -> None:
    whole: list[list[Tensor]] = []
    names: list[list[str]] = []
    for depth in (1, 2, 3):
        torch.manual_seed(0)
        model = LeNet5(head=depth).build(IMAGE)
        whole.append([*model.parameters()])
        names.append([*model.params("head")])
    assert names == [
        ["head.weight", "head.bias"],
        ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"],
        [f"head.{k}.{part}" for k in (0, 2, 4) for part in ("weight", "bias")],
    ]
    assert all(torch.equal(a, b) for other in whole[1:] for a, b in zip(whole[0], other, strict=True))
