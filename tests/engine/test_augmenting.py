"""Flips and crops by hand, and what they leave alone: the order of samples, other clients, features, evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwise as hw
from headwise.app import registry
from headwise.app.checks import check_training
from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.engine.client.augmenting import augment
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.errors import ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.models.base import Task
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings.choices import Augmentation
from headwise.settings.options import Train
from headwise.testing.toy import play
from headwise.testing.watching import Apart

BOTH: tuple[Any, ...] = (Augmentation("flip"), Augmentation("crop"))


def image() -> Tensor:
    """[2 channels, 8 rows, 16 columns]: every pixel says where it is."""
    return torch.arange(2 * 8 * 16.0).view(2, 8, 16)


def changed(names: tuple[Any, ...], n: int = 200) -> list[Tensor]:
    x = image().repeat(n, 1, 1, 1)
    found, y = augment(x, torch.arange(n), names, torch.Generator().manual_seed(0))
    assert torch.equal(y, torch.arange(n))
    assert torch.equal(x, image().repeat(n, 1, 1, 1)), "samples stay as they are"
    return list(found)


def mirrored(t: Tensor) -> Tensor:
    return torch.stack([t[..., 15 - k] for k in range(16)], -1)


def shifted(t: Tensor, down: int, right: int) -> Tensor:
    """Pixel (r, c) comes from (r + down, c + right), or from the edge."""
    rows, columns = ([min(max(k + by, 0), size - 1) for k in range(size)] for by, size in ((down, 8), (right, 16)))
    return torch.stack([torch.stack([t[:, r, c] for c in columns], -1) for r in rows], 1)


def test_a_rectangle_of_half_of_the_images_is_erased() -> None:
    images = changed((Augmentation("erase"),))
    areas: list[int] = []
    for x in images:
        erased = (x == 0) & (image() != 0)
        if not bool(erased.any()):
            assert torch.equal(x, image())
            continue
        rows = erased.any(2).any(0).nonzero().flatten().tolist()
        columns = erased.any(1).any(0).nonzero().flatten().tolist()
        block = image()
        block[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = 0
        assert torch.equal(x, block), "a rectangle in all channels, and nothing else"
        areas.append(len(rows) * len(columns))
    assert 80 < len(areas) < 120
    assert min(areas) <= 6 and max(areas) >= 30, "from a fiftieth to a third of 128 pixels"
    assert max(areas) <= 50


def test_what_is_erased_depends_on_the_order() -> None:
    later = changed((Augmentation("erase"), Augmentation("crop")))
    assert any((x == 0).sum() > 50 * 2 for x in later), "a crop repeats what was erased at an edge"


def test_half_of_the_images_are_mirrored() -> None:
    found = changed(BOTH[:1])
    turned = [torch.equal(x, mirrored(image())) for x in found]
    assert all(torch.equal(x, image()) or t for x, t in zip(found, turned, strict=True))
    assert 70 < sum(turned) < 130  # 30 is more than four standard deviations of a fair coin


def test_crops_are_shifts_by_up_to_an_eighth_with_repeated_edges() -> None:
    allowed = {(d, r): shifted(image(), d, r) for d in (-1, 0, 1) for r in (-2, -1, 0, 1, 2)}
    drawn = [next(k for k, t in allowed.items() if torch.equal(x, t)) for x in changed(BOTH[1:])]
    assert set(drawn) == set(allowed)


def test_both_in_the_order_of_their_names() -> None:
    allowed = [shifted(t, d, r) for t in (image(), mirrored(image())) for d in (-1, 0, 1) for r in (-2, -1, 0, 1, 2)]
    found = changed(BOTH)
    assert all(any(torch.equal(x, t) for t in allowed) for x in found)
    assert len({tuple(x.flatten().tolist()) for x in found}) == 30


def test_targets_of_pixels_move_with_their_images() -> None:
    x = image()[:1].repeat(50, 1, 1, 1)
    found, y = augment(x, x[:, 0].long(), BOTH, torch.Generator().manual_seed(0))
    assert torch.equal(found[:, 0].long(), y)
    assert not torch.equal(found, x)


def test_the_layout_in_memory_stays() -> None:
    x = image().repeat(3, 1, 1, 1).contiguous(memory_format=torch.channels_last)
    found, _ = augment(x, torch.arange(3), BOTH, torch.Generator().manual_seed(0))
    assert found.is_contiguous(memory_format=torch.channels_last)


def plan(method: Any = None, **settings: Any) -> Plan:
    """Three clients of ten images, and a network with a convolution."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((36, 1, 8, 8)).astype(np.float32), np.arange(36) % 3
    blocks = np.split(np.arange(36), 3)
    data = FederatedData(Dataset(x, y, ("a", "b", "c")), [Parts(b[:10], b[:0], b[10:]) for b in blocks])
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 6), nn.ReLU())
    train = Train(**{"batch": 4, "lr": 0.1, "augment": BOTH, **settings})
    experiment = hw.Experiment(rounds=2, train=train)
    return Plan(experiment, method or FedAvg(), (SplitModel(body, nn.Linear(6, 3)).eval(),), data.clients())


def bench(client: int = 0, t: int = 1, **settings: Any) -> ClientBench:
    return ClientBench(plan(**settings), client, t, purpose="fit", kept=Params(), trained=0)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "lr": 0.01}], ids=str)
@pytest.mark.parametrize("part", ["all", "head"])
def test_training_sees_the_changed_images(settings: dict[str, Any], part: str) -> None:
    """A head under a frozen body, too: features of other images are not taken from a cache."""
    local, again = bench(**settings), bench(**settings)
    mine, other = local.init(), again.init()
    learning = list((other.head if part == "head" else other).parameters())
    kind = torch.optim.Adam if settings else torch.optim.SGD
    optimizer = kind(learning, settings.get("lr", 0.1))  # type: ignore[arg-type]
    assert local.sgd(mine, only=mine.head if part == "head" else None, epochs=2) == 6
    for x, y in again.batches(2):
        optimizer.zero_grad()
        cross_entropy(other(x), y).backward()
        optimizer.step()
    for a, b in zip(mine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert [name for name in local.clock.seconds if name == "features"] == []


def test_a_frozen_network_sees_the_changed_images() -> None:
    local = bench()
    body = local.init().body
    frozen = local.freeze(body)
    for x, _ in local.batches(1):
        torch.testing.assert_close(frozen(x), body(x), rtol=0, atol=1e-6)


def test_only_the_images_change_not_their_order() -> None:
    changed, usual = list(bench().batches()), list(bench(augment=()).batches())
    assert [y.tolist() for _, y in changed] == [y.tolist() for _, y in usual]
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(changed, usual, strict=True))
    local = bench()
    assert torch.equal(local.features(local.init().body), bench(augment=()).features(local.init().body))


def test_what_is_drawn_depends_on_seed_client_and_round_alone() -> None:
    first, again = ([x for x, _ in bench().batches()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    draws = [tuple(torch.rand(4, generator=bench(c, t)._changes).tolist()) for c in (0, 1) for t in (1, 2)]
    assert len(set(draws)) == 4


@pytest.mark.parametrize("name", ["fedavg", "fedah", "per-fedavg"])
def test_clients_in_company_and_alone_get_the_same_bits(name: str) -> None:
    asked = plan(registry.find("method", name)())
    assert play(asked, nervous=True).trace() == play(asked, Apart(asked), nervous=True).trace()
    assert play(asked).trace().server != play(plan(asked.method, augment=())).trace().server


@pytest.mark.parametrize("task", [Task((64,), 3), Task((20,), 4, 1000)])
def test_what_is_not_an_image_is_refused(task: Task) -> None:
    experiment = hw.Experiment(data="heart_disease", train={"augment": ["flip"]})
    with pytest.raises(ConfigError, match=r"^train.augment is \['flip'\], but samples of heart_disease \(.*\) are not"):
        check_training(experiment, FedAvg(), task)
    check_training(experiment, FedAvg(), Task((1, 8, 8), 3))
