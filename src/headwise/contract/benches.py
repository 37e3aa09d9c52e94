"""The workbenches: everything a method may use. They hide devices, loaders, optimizers and caches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..models.split import SplitModel
from ..params import Params
from ..records import Record

M = TypeVar("M", bound=nn.Module)

Predictor = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to scores (of classes, labels, quantities, pixels): a model, or any function."""


class ClassMeans(Record):
    """The mean feature of every class that a client holds, with its label.

    >>> means = ClassMeans(torch.tensor([2]), torch.tensor([[0.5, 1.5]]))
    >>> means.table(classes=3).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.5, 1.5]]
    """

    labels: Tensor
    """[c] int32, ascending"""
    means: Tensor
    """[c, K]"""

    def table(self, classes: int) -> Tensor:
        """[classes, K]: the means by class, zeros where there is none."""
        return self.means.new_zeros(classes, self.means.shape[1]).index_copy(0, self.labels.long(), self.means)

    def where(self, condition: bool) -> ClassMeans:
        """These means if the condition holds, otherwise an empty set."""
        return self if condition else ClassMeans(self.labels[:0], self.means[:0])


def split_epochs(epochs: float) -> list[float]:
    """The epochs one by one.

    Args:
        epochs: How many, not always whole.

    Returns:
        Ones, and what is left.

    >>> split_epochs(2.5)
    [1.0, 1.0, 0.5]
    """
    whole = int(epochs)
    return [*[1.0] * whole, *([epochs - whole] if epochs > whole else [])]


class Bench(Protocol):
    """What both halves may use."""

    t: int
    """this round, from 1"""
    T: int
    """total rounds"""
    N: int
    """client numbers are below this"""
    clients: Sequence[int]
    """the clients that take part, ascending"""
    classes: int
    """number of classes, labels or quantities"""
    rng: torch.Generator
    """this half's randomness in this round"""

    def init(self, *, common: bool = False) -> SplitModel:
        """The initial model, the same for all clients with this architecture; `common` means the server's."""
        ...

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        """A model with these parameters; the rest is the client's own, or else the initial values."""
        ...

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        """A module drawn with this key's randomness: the same everywhere and in every round."""
        ...

    def random_head(self, *key: int | str) -> Params:
        """A freshly drawn head for this model; the same key gives the same head."""
        ...


class Central(Bench, Protocol):
    """The server's workbench."""

    @property
    def drawn(self) -> Sequence[int]:
        """The clients that train in this round, ascending; empty during an evaluation and when a client joins."""
        ...

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes of this client's training samples, ascending; all classes under privacy."""
        ...

    def size(self, client: int) -> int:
        """The training samples that this client reported; under privacy that hides sizes, the same for everybody."""
        ...

    def mean(self, items: Sequence[Params], weights: Sequence[float], around: Params) -> Params:
        """The weighted mean of the clients' versions of `around`, or the run's `robust.rule` instead."""
        ...


class Local(Bench, Protocol):
    """A client's workbench, with its data and an optimizer."""

    client: int
    """this client"""
    n: int
    """training samples"""
    lr: float
    """this round's learning rate, decay included"""
    ratio: float
    """average share of the clients that take part in a round, from `sampling`"""

    @property
    def epochs(self) -> float:
        """Epochs per round, from `train.epochs` or `train.steps`; `split_epochs` divides them into single ones."""
        ...

    @property
    def class_counts(self) -> Tensor:
        """[classes]: training samples of each class, or with each label."""
        ...

    def batches(
        self,
        epochs: float | None = None,
        *,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Freshly shuffled batches, of `size` or of the run's batch size, with `train.augment` applied.

        With a frozen body to go `through`, they are batches of features. Modules in `train` are in training mode while
        you iterate.
        """
        ...

    def loss(self, model: Predictor, x: Tensor, y: Tensor) -> Tensor:
        """The task's mean loss: for classes, the cross-entropy."""
        ...

    def loss_of(self, scores: Tensor, y: Tensor) -> Tensor:
        """The task's mean loss, from scores."""
        ...

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """How far the predictions of the scores `q` are from those of `p`: for classes, KL(p || q)."""
        ...

    def sgd(
        self,
        *models: nn.Module,
        only: nn.Module | Sequence[nn.Module] | None = None,
        epochs: float | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
        clip: float | None = None,
        pull: tuple[float, Params] | None = None,
        shift: Params | None = None,
    ) -> int:
        """Train the models, or `only` parts of them with the rest frozen; return the steps taken.

        The experiment's optimizer, in a fresh state, takes the steps. Several models train together on one joint
        `loss`, each from its values before the batch. `project` is called after each step to enforce constraints;
        `clip` limits the gradient's norm, instead of `train.clip`.

        `pull=(a, anchor)` and `shift=b` add a (w - anchor) + b to the gradient of each parameter w of the first model
        that they name: the gradient of a/2 ||w - anchor||^2 + <b, w>, at the speed of plain training.
        """
        ...

    def distance(self, steps: int) -> float:
        """How far this many steps of the experiment's optimizer move a weight whose gradient is always one."""
        ...

    def descend(
        self,
        start: Params,
        loss: Callable[[Params, Tensor, Tensor], Tensor],
        *,
        epochs: float | None = None,
        lr: float | None = None,
        project: Callable[[Params], Params] | None = None,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
        weights: Collection[str] = (),
    ) -> Params:
        """Plain gradient descent on parameters outside any module, all from their values before the batch.

        `project` enforces constraints on each step's result; the parameters named in `weights` are moved by the
        experiment's optimizer, as in `sgd`; the rest is as for `batches`.
        """
        ...

    def window(self, share: float) -> Local:
        """This bench with a random contiguous share of the training samples, in data order."""
        ...

    def hold_out(self, share: float) -> tuple[Local, tuple[Tensor, Tensor]]:
        """This bench without a fixed share of the training samples, and those samples.

        If there are too few samples to hold any out, both are all training samples. A method never sees validation
        samples, on which settings, methods and the last round are chosen.
        """
        ...

    def freeze(self, module: nn.Module) -> Predictor:
        """The outputs of a module that stays as it is, in evaluation mode and without gradients.

        Use it for what a loss compares with, such as the features under the global model: on the training samples they
        are computed once, all together, which is faster than batch by batch.
        """
        ...

    def features(self, body: nn.Module) -> Tensor:
        """[n, K]: this body's features of the training samples, in evaluation mode and in data order."""
        ...

    @property
    def labels(self) -> Tensor:
        """The targets of the training samples, in the order of `features`: [n] classes, or what the task has."""
        ...

    def class_means(self, body: nn.Module) -> ClassMeans:
        """The exact mean feature of each class that this client holds."""
        ...
