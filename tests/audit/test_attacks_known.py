"""Attacks with known answers, and measures computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwise.audit.findings import agreement, auc, best_match, correlation, f1
from headwise.audit.inference import losses
from headwise.audit.reconstruction import first_layer, from_features, from_first_layer, from_whole_gradient
from headwise.data.federated import Samples
from headwise.models.split import SplitModel
from headwise.params import Params, gradient


def network(hidden: int = 8) -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(6, hidden), nn.ReLU()), nn.Linear(hidden, 3))


def slope(model: SplitModel, x: torch.Tensor, y: torch.Tensor) -> Params:
    return gradient(lambda w: cross_entropy(model.given(w)(x), y), model.params())


def test_a_batch_of_one_is_recovered_exactly() -> None:
    model, x = network(), torch.randn(1, 6)
    g = slope(model, x, torch.tensor([1]))
    made = from_first_layer(g["body.1.weight"], g["body.1.bias"])
    assert len(made) > 0
    assert made == pytest.approx(x.expand(len(made), -1), rel=1e-4)


def test_a_batch_of_two_is_recovered_where_units_see_only_one_of_them() -> None:
    """Two opposite samples: without bias, a unit that is active for one is inactive for the other."""
    model, x = network(), torch.randn(1, 6)
    model.body[1].bias.data.zero_()
    both = torch.cat([x, -x])
    g = slope(model, both, torch.tensor([0, 2]))
    made = from_first_layer(g["body.1.weight"], g["body.1.bias"])
    assert best_match(both, made).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert torch.cat([made - x, made + x]).abs().amax(1).sort().values[: len(made)].max() < 1e-4


def test_units_that_learned_nothing_make_nothing() -> None:
    assert len(from_first_layer(torch.zeros(4, 6), torch.zeros(4))) == 0


def test_a_sample_is_found_by_its_whole_gradient() -> None:
    model, x = network(32), torch.tensor([[1.0, -1.0, 0.5, -0.5, 0.0, 1.0]])
    made = from_whole_gradient(
        model, model.params(), slope(model, x, torch.tensor([2])), torch.zeros(1, 6) + 0.01, torch.tensor([2])
    )
    assert correlation(x, made).item() > 0.98


def test_only_networks_that_begin_with_a_full_layer_give_ratios() -> None:
    assert first_layer(network()) == "body.1"
    assert first_layer(SplitModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), nn.Linear(2, 3))) is None
    assert first_layer(SplitModel(nn.Flatten(), nn.Linear(6, 3))) == "head"


def test_features_of_an_invertible_body_give_the_sample() -> None:
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6)).Q
    x = torch.randn(3, 6)
    assert from_features(lambda v: v @ turn, x @ turn, torch.zeros(3, 6)) == pytest.approx(x, abs=1e-3)


def test_features_of_a_body_that_forgets_give_only_what_it_keeps() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    made = from_features(lambda v: v[:, :2], x[:, :2], torch.zeros(1, 3))
    assert made[0].tolist() == pytest.approx([1.0, 2.0, 0.0], abs=1e-3)


def test_correlations() -> None:
    a = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    b = torch.tensor([[2.0, 4.0, 6.0], [3.0, 2.0, 1.0]])
    assert correlation(a, b).tolist() == [pytest.approx([1.0, -1.0]), [0.0, 0.0]]
    assert best_match(a, b).tolist() == pytest.approx([1.0, 0.0])
    assert best_match(a, b[:0]).tolist() == [0.0, 0.0]


def test_measures() -> None:
    assert auc(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0])) == 1.0
    assert auc(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 2.0])) == (0.5 + 0 + 1 + 1) / 4
    assert f1({1, 2}, {2, 3}) == 0.5
    assert f1({1}, {1}) == 1.0
    assert agreement(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])) == 0.5


def test_a_model_that_knows_its_samples_by_heart_has_no_loss_on_them() -> None:
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1])
    known = Samples(x[:3], y[:3])

    def model(v: torch.Tensor) -> torch.Tensor:
        hit = (v[:, None] == known.x[None]).all(2)
        return 50.0 * hit.float() @ torch.eye(2)[known.y]

    members, others = losses(model, known), losses(model, Samples(x[3:], y[3:]))
    assert auc(-members, -others) == 1.0
