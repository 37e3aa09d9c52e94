"""The number of parameters of every model, as published or counted by hand."""

from __future__ import annotations

import pytest

from headwise.models.base import Model, Task
from headwise.models.cnn import CNN
from headwise.models.fasttext import FastText
from headwise.models.fedgh_cnn import FedGHCNN
from headwise.models.lenet5 import LeNet5
from headwise.models.linear import Linear
from headwise.models.mlp import MLP
from headwise.models.resnet18 import ResNet18

MNIST = Task((1, 28, 28), 10)
CIFAR10 = Task((3, 32, 32), 10)
CIFAR100 = Task((3, 32, 32), 100)
TINY = Task((3, 64, 64), 200)
NEWS = Task((200,), 4, vocabulary=98_635)

ROWS = {
    "cnn-mnist": (CNN(), MNIST, 576_896, 5_130),
    "cnn-cifar10": (CNN(), CIFAR10, 873_408, 5_130),
    "cnn-cifar100": (CNN(), CIFAR100, 873_408, 51_300),
    "cnn-tiny": (CNN(), TINY, 5_592_000, 102_600),
    "fedgh-1": (FedGHCNN(1), CIFAR10, 2_621_558 - 5_010, 5_010),
    "fedgh-2": (FedGHCNN(2), CIFAR10, 1_815_142 - 5_010, 5_010),
    "fedgh-3": (FedGHCNN(3), CIFAR10, 1_320_558 - 5_010, 5_010),
    "fedgh-4": (FedGHCNN(4), CIFAR10, 1_060_358 - 5_010, 5_010),
    "fedgh-5": (FedGHCNN(5), CIFAR10, 670_058 - 5_010, 5_010),
    "fedgh-1-cifar100": (FedGHCNN(1), CIFAR100, 2_621_558 - 5_010, 5_010 + 45_090),
    "resnet-tiny": (ResNet18(), TINY, 11_176_512, 512 * 200 + 200),
    "resnet-cifar100": (ResNet18(), CIFAR100, 11_176_512, 512 * 100 + 100),
    "resnet-3x3": (ResNet18("cifar"), CIFAR100, 11_168_832, 512 * 100 + 100),
    "resnet-500": (ResNet18(representation=500), CIFAR100, 11_433_012, 50_100),
    "resnet-3x3-500": (ResNet18("cifar", 500), CIFAR100, 11_425_332, 50_100),
    "resnet-group": (ResNet18(norm="group"), TINY, 11_176_512, 512 * 200 + 200),
    "fasttext": (FastText(), NEWS, 3_157_376, 132),
    "lenet5": (LeNet5(), CIFAR10, 62_006 - 850, 850),
    "lenet5-wide": (LeNet5("wide"), CIFAR10, 4_864 + 102_464 + 192_120 + 7_744, 650),
    "mlp": (MLP(), MNIST, 784 * 64 + 64, 650),
    "linear": (Linear(), MNIST, 0, 7_850),
}


@pytest.mark.parametrize(("model", "task", "body", "head"), ROWS.values(), ids=ROWS)
def test_counts(model: Model, task: Task, body: int, head: int) -> None:
    net = model.build(task)
    assert net.params("body").numel() == body
    assert net.params("head").numel() == head
    assert net.params().numel() == body + head == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("model", "task", "total"),
    [
        (CNN(), MNIST, 582_026),
        (CNN(), CIFAR10, 878_538),
        (CNN(), CIFAR100, 924_708),
        (CNN(), TINY, 5_694_600),
        (LeNet5(), CIFAR10, 62_006),
    ],
)
def test_totals_as_printed(model: Model, task: Task, total: int) -> None:
    assert model.build(task).params().numel() == total


@pytest.mark.parametrize(
    ("task", "total", "body", "head"),
    [
        (MNIST, 2273.54, 2253.50, 20.04),
        (CIFAR10, 3431.79, 3411.75, 20.04),
        (CIFAR100, 3612.14, 3411.75, 200.39),
        (TINY, 22244.53, 21843.75, 400.78),
    ],
)
def test_kilobytes_of_the_cnn(task: Task, total: float, body: float, head: float) -> None:
    net = CNN().build(task)
    sizes = [net.params(part).numel() * 4 / 1024 for part in ("", "body", "head")]
    assert sizes == pytest.approx([total, body, head], abs=0.0051)


@pytest.mark.parametrize(("variant", "size"), [(1, 10.0005), (2, 6.9242), (3, 5.0375), (4, 4.0449), (5, 2.5561)])
def test_megabytes_of_fedgh(variant: int, size: float) -> None:
    net = FedGHCNN(variant).build(CIFAR10)
    assert net.params().numel() * 4 / 2**20 == pytest.approx(size, abs=5e-5)
