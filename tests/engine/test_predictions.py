"""What models say does not depend on how they are asked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise import catalog
from headwise.engine.predictions import STEADY, passed, predict
from headwise.engine.together import ask
from headwise.models.base import Task
from headwise.models.split import SplitModel, channels_last, laid_out

IMAGE, WORDS = Task((3, 32, 32), 10), Task((20,), 4, 50)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", [n for n in catalog.names("model") if n != "resnet18"])
def test_a_sample_is_seen_the_same_in_any_company(name: str) -> None:
    """Alone, among few and among many: the same bits, or engines that group clients differently would differ."""
    task = WORDS if name == "fasttext" else IMAGE
    net = catalog.find("model", name)().build(task).eval()
    x = torch.randint(50, (90, 20), generator=rng()) if task is WORDS else torch.randn(90, *task.shape, generator=rng())
    net, x = laid_out(net), x.contiguous(memory_format=torch.channels_last) if channels_last(net) else x
    everything = passed(net, x, 500)
    for first, last in ((0, 1), (3, 10), (7, 40), (40, 90)):
        assert torch.equal(passed(net, x[first:last], 500), everything[first:last])
    assert torch.equal(passed(net, x, 50), everything)


def test_a_pass_has_no_more_rows_than_asked_for_and_no_fewer_than_steady() -> None:
    sizes: list[int] = []

    def network(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    x = torch.randn(100, 2)
    assert torch.equal(passed(network, x, 40), x)
    assert torch.equal(passed(network, x[:3], 40), x[:3])
    assert sizes == [40, 40, STEADY, STEADY]


def test_a_network_is_asked_in_evaluation_mode_and_without_gradients() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9)).train()
    seen: list[bool] = []
    net.register_forward_hook(lambda *_: seen.append(net.training or torch.is_grad_enabled()))
    ask(predict(net, torch.randn(4, 3), 2))
    assert seen == [False]


def heads_of(bodies: list[nn.Linear]) -> list[SplitModel]:
    return [SplitModel(body, nn.Linear(5, 4)).eval() for body in bodies]


def test_equal_bodies_are_passed_once_and_heads_are_everybodys_own() -> None:
    torch.manual_seed(0)
    shared, twin, other = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(3, 5)
    twin.load_state_dict(shared.state_dict())
    passes: list[int] = []
    for body in (shared, twin, other):
        body.register_forward_hook(lambda *_, body=body: passes.append(id(body)))
    models = heads_of([shared, twin, other])
    samples = [torch.randn(n, 3) for n in (40, 2, 50)]
    works = [predict(m, x, 500) for m, x in zip(models, samples, strict=True)]
    works[0].together(works[1:])
    assert passes == [id(shared), id(other)]
    for work, model, x in zip(works, models, samples, strict=True):
        torch.testing.assert_close(work.scores[0], model(x))


def test_only_networks_of_one_shape_are_asked_together() -> None:
    narrow, wide = heads_of([nn.Linear(3, 5)])[0], SplitModel(nn.Linear(3, 7), nn.Linear(7, 4))
    x = torch.randn(2, 3)
    works = [predict(m, x, 500) for m in (narrow, wide, narrow.head, narrow.head)]
    assert len({work.key for work in works}) == 4
    assert predict(narrow, x, 500).key == predict(heads_of([nn.Linear(3, 5)])[0], x[:1], 500).key
