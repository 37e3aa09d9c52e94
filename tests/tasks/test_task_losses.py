"""The mathematics of every task, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.errors import ConfigError
from headwise.models.base import Task
from headwise.settings.options import TaskName
from headwise.tasks.base import Objective
from headwise.tasks.registry import kind_of, objective_of

CLASSES = Task((5,), 3)
PIXELS = Task((1, 1, 2), 3, kind="segmentation")
LABELS = Task((5,), 2, kind="multilabel")
QUANTITIES = Task((5,), 2, 0, "regression", (10.0, 0.0), (2.0, 1.0))
EVERY = [CLASSES, LABELS, QUANTITIES, PIXELS]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def nll(z: list[float], y: int) -> float:
    """-log softmax."""
    return math.log(sum(map(math.exp, z))) - z[y]


Z = [[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]]


def test_cross_entropy() -> None:
    loss = objective_of(CLASSES).loss(torch.tensor(Z), torch.tensor([1, 0])).item()
    assert loss == pytest.approx((nll(Z[0], 1) + nll(Z[1], 0)) / 2)


def test_weights_multiply_the_loss_of_their_class_even_in_a_batch_of_one() -> None:
    objective = objective_of(CLASSES, (1.0, 4.0, 0.0))
    loss = objective.loss(torch.tensor(Z), torch.tensor([1, 0])).item()
    assert loss == pytest.approx((4 * nll(Z[0], 1) + nll(Z[1], 0)) / 2)
    assert objective.loss(torch.tensor(Z[:1]), torch.tensor([1])).item() == pytest.approx(4 * nll(Z[0], 1))


def test_smoothing_spreads_a_share_over_all_classes() -> None:
    loss = objective_of(CLASSES, None, 0.3).loss(torch.tensor(Z[:1]), torch.tensor([1])).item()
    assert loss == pytest.approx(0.7 * nll(Z[0], 1) + 0.1 * sum(nll(Z[0], k) for k in range(3)))


def test_binary_cross_entropy_is_the_mean_over_labels() -> None:
    z = torch.tensor([[1.0, -2.0]])
    y = torch.tensor([[1.0, 1.0]])
    first = -math.log(sigmoid(1.0))
    second = -math.log(sigmoid(-2.0))
    assert objective_of(LABELS).loss(z, y).item() == pytest.approx((first + second) / 2)
    assert objective_of(LABELS, (1.0, 5.0)).loss(z, y).item() == pytest.approx((first + 5 * second) / 2)
    assert objective_of(LABELS, (9.0, 9.0)).loss(z, 1 - y).item() == pytest.approx(  # weights are those of ones
        (-math.log(sigmoid(-1.0)) - math.log(sigmoid(2.0))) / 2
    )
    smooth = 0.9 * first - 0.1 * math.log(sigmoid(-1.0))
    assert objective_of(LABELS, None, 0.2).loss(z[:, :1], y[:, :1]).item() == pytest.approx(smooth)


def test_squared_error_is_that_of_scaled_targets() -> None:
    z = torch.tensor([[1.0, 2.0]])
    y = torch.tensor([[14.0, -1.0]])
    assert objective_of(QUANTITIES).loss(z, y).item() == pytest.approx(((1 - 2) ** 2 + (2 + 1) ** 2) / 2)
    assert objective_of(QUANTITIES).in_target_units(z).tolist() == [[12.0, 2.0]]
    assert objective_of(QUANTITIES).probabilities(z).tolist() == [[12.0, 2.0]], "quantities have none"


def test_every_pixel_counts_the_same() -> None:
    z = torch.tensor(Z).T.reshape(1, 3, 1, 2)  # one image of two pixels
    y = torch.tensor([[[1, 0]]])
    assert objective_of(PIXELS).loss(z, y).item() == pytest.approx((nll(Z[0], 1) + nll(Z[1], 0)) / 2)
    loss = objective_of(PIXELS, (1.0, 4.0, 1.0)).loss(z, y).item()
    assert loss == pytest.approx((4 * nll(Z[0], 1) + nll(Z[1], 0)) / 2)
    assert kind_of(PIXELS).decode(z.numpy(), None).tolist() == [[[1, 2]]]


def test_predictions_and_probabilities() -> None:
    assert kind_of(CLASSES).decode(np.array(Z), np.array(["a", "b", "c"])).tolist() == ["b", "c"]
    shares = objective_of(CLASSES).probabilities(torch.tensor(Z))
    assert shares[0, 1].item() == pytest.approx(math.exp(-nll(Z[0], 1)))
    assert kind_of(LABELS).decode(np.array([[0.1, -0.1]]), None).tolist() == [[1, 0]]
    assert objective_of(LABELS).probabilities(torch.tensor([[2.0]])).item() == pytest.approx(sigmoid(2.0))


def test_balanced_weights_give_all_classes_the_same_sum() -> None:
    y = torch.tensor([0, 0, 0, 1])
    objective: Any = kind_of(CLASSES).balance(CLASSES, y, 0.0)
    assert objective.weights.tolist() == pytest.approx([4 / (2 * 3), 4 / 2, 1.0])  # nobody has class 2
    assert objective.weights[y].mean().item() == pytest.approx(1.0)
    pixels: Any = kind_of(PIXELS).balance(PIXELS, y.view(2, 1, 2), 0.0)
    assert pixels.weights.tolist() == objective.weights.tolist()
    labels: Any = kind_of(LABELS).balance(LABELS, torch.tensor([[1.0, 0], [0, 0], [0, 0], [0, 0]]), 0.0)
    assert labels.weights[:, 0].tolist() == pytest.approx([4 / 6, 4 / 2])
    assert labels.weights[:, 1].tolist() == [1.0, 1.0]  # never there


@pytest.mark.parametrize(
    ("task", "y", "guess"),
    [
        (CLASSES, torch.tensor([2, 2, 1]), [math.log(1 / 6), math.log(2 / 6), math.log(3 / 6)]),
        (LABELS, torch.tensor([[1.0, 0], [1, 0], [0, 0]]), [math.log(3 / 2), math.log(1 / 4)]),
        (QUANTITIES, torch.tensor([[12.0, 1], [16, 2]]), [2.0, 1.5]),
    ],
    ids=["classification", "multilabel", "regression"],
)
def test_a_guess_is_what_the_training_targets_say_on_the_whole(task: Task, y: Tensor, guess: list[float]) -> None:
    assert objective_of(task).guess(y).tolist() == pytest.approx(guess)


def test_a_guess_of_pixels_is_the_same_for_all_of_them() -> None:
    scores = objective_of(PIXELS).guess(torch.tensor([[[0, 0]], [[0, 2]]]))
    assert scores.shape == (3, 1, 2)
    assert scores.exp()[:, 0, 1].tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])


@pytest.mark.parametrize("task", EVERY, ids=lambda t: t.kind)
def test_divergence_is_the_expected_loss_above_the_smallest(task: Task) -> None:
    """If targets are as `p` says: for classes and labels, an expectation over them; for quantities, p itself."""
    rng = torch.Generator().manual_seed(0)
    shape = (1, task.classes, *(task.shape[1:] if kind_of(task).per_pixel else ()))
    p = torch.randn(shape, generator=rng)
    q = torch.randn(shape, generator=rng)
    objective = objective_of(task)
    assert objective.divergence(p, p).item() == pytest.approx(0, abs=1e-6)
    assert objective.divergence(p, q).item() == pytest.approx(_expect(objective, p, q), rel=1e-4)


def _expect(objective: Objective, p: Tensor, q: Tensor) -> float:
    if p.dim() == 4:  # pixel by pixel
        flat = objective_of(CLASSES)
        pixels = [(p[0, :, 0, k : k + 1].T, q[0, :, 0, k : k + 1].T) for k in range(2)]
        return sum(_expect(flat, a, b) for a, b in pixels) / 2
    if objective is objective_of(QUANTITIES):
        return (
            objective.loss(q, objective.in_target_units(p)).item()
            - objective.loss(p, objective.in_target_units(p)).item()
        )
    if objective is objective_of(LABELS):
        ones = p.sigmoid()
        return objective.loss(q, ones).item() - objective.loss(p, ones).item()
    shares = p.softmax(1)[0].tolist()
    by_class = [torch.tensor([k]) for k in range(3)]
    return sum(s * (objective.loss(q, y) - objective.loss(p, y)).item() for s, y in zip(shares, by_class, strict=True))


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.2}, {"weights": (1.0, 3.0, 0.5)}], ids=str)
@pytest.mark.parametrize("task", EVERY[:3], ids=lambda t: t.kind)
def test_the_dense_form_has_the_gradient_of_the_loss(task: Task, options: dict[str, Any]) -> None:
    """Of three samples with unequal shares in the mean."""
    if "weights" in options:
        options = {"weights": options["weights"][: task.classes]}
    objective = objective_of(task, **options)
    rng = torch.Generator().manual_seed(1)
    z = torch.randn(3, task.classes, generator=rng, requires_grad=True)
    y = torch.tensor([2, 0, 1]) if task is CLASSES else torch.tensor([[1.0, 0], [0, 0], [1, 1]])
    shares = torch.tensor([[0.5], [0.3], [0.2]])
    total = sum(share * objective.loss(z[k : k + 1], y[k : k + 1]) for k, share in enumerate([0.5, 0.3, 0.2]))
    assert isinstance(total, Tensor)
    (slope,) = torch.autograd.grad(total, z)
    dense = objective.dense(y)
    scores = z.detach()
    linked = {"softmax": scores.softmax(1), "sigmoid": scores.sigmoid(), "identity": scores}[dense.link]
    torch.testing.assert_close(shares * dense.weights * (linked - dense.targets), slope)


@pytest.mark.parametrize("task", EVERY, ids=lambda t: t.kind)
def test_blank_targets_can_be_learned(task: Task) -> None:
    y = kind_of(task).make_blank(task, 4)
    scores = torch.zeros(4, task.classes, *(task.shape[1:] if kind_of(task).per_pixel else ()))
    assert objective_of(task).loss(scores, y).isfinite()


@pytest.mark.parametrize(
    ("kind", "weights", "smoothing", "message"),
    [
        ("regression", "balanced", 0.0, "train.class_weights is 'balanced', but task is 'regression', which has no cl"),
        ("regression", None, 0.1, "train.label_smoothing is 0.1, but task is 'regression', which has no classes."),
        ("multilabel", (1.0,), 0.0, "train.class_weights has 1 numbers, but must have one for each of the 3 classes."),
    ],
)
def test_options_that_do_not_suit_the_task(kind: TaskName, weights: Any, smoothing: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind_of(kind).check_options(Task((5,), 3, kind=kind), weights, smoothing)
