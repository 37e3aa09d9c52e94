"""The workbenches: what a method may ask for. They hide devices, loaders, optimisers, caching and speed."""

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
"""From a batch of inputs to class scores: a model, or any function."""


class ClassMeans(Record):
    """The mean feature of every class that a client holds, and the class."""

    labels: Tensor
    """[c] int32, ascending"""
    means: Tensor
    """[c, K]"""

    def where(self, wanted: bool) -> ClassMeans:
        """These, or those of no class at all."""
        return self if wanted else ClassMeans(self.labels[:0], self.means[:0])


class Bench(Protocol):
    """What both halves may ask for."""

    t: int
    """this round, from 1"""
    T: int
    """rounds in all"""
    N: int
    """clients in all"""
    classes: int
    """classes of the task"""
    rng: torch.Generator
    """randomness of this half in this round"""

    def init(self, *, common: bool = False) -> SplitModel:
        """The initial model: the same for everyone with this architecture. `common` is the server's architecture."""
        ...

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        """A model with these parameters; what they leave open is the client's own, else the initial."""
        ...

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        """A module made with the randomness of this key: the same everywhere and in every round."""
        ...

    def random_head(self, *key: int | str) -> Params:
        """A freshly drawn head for this model; the same key gives the same head."""
        ...


class Central(Bench, Protocol):
    """The server's workbench."""

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes that this client asked for: those of its training samples, ascending."""
        ...

    def size(self, client: int) -> int:
        """The training samples that this client told of; under privacy that hides sizes, the same for everybody."""
        ...

    def mean(self, items: Sequence[Params], weights: Sequence[float], around: Params) -> Params:
        """The weighted mean of what clients made of `around`, or what the run takes in its place (`robust.rule`)."""
        ...


class Local(Bench, Protocol):
    """A client's workbench: its data and an optimiser besides."""

    client: int
    """this client"""
    n: int
    """training samples"""
    lr: float
    """this round's learning rate, decay included"""
    epochs: int
    """passes over the data per round, as the experiment says"""
    ratio: float
    """share of the clients that take part in a round, on average, as the experiment says"""

    @property
    def validation(self) -> tuple[Tensor, Tensor] | None:
        """The samples kept for choosing between models, where the split has such a part."""
        ...

    @property
    def class_counts(self) -> Tensor:
        """[classes] training samples of each class."""
        ...

    def batches(
        self,
        epochs: int | None = None,
        *,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Freshly shuffled batches, of another `size` if given.

        `through` a frozen body, they are features. Modules named in `train` are in training mode meanwhile.
        """
        ...

    def loss(self, model: Predictor, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy."""
        ...

    def sgd(
        self,
        *models: nn.Module,
        only: nn.Module | Sequence[nn.Module] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
        clip: float | None = None,
    ) -> int:
        """Train the models, or `only` parts of them with the rest frozen; return the steps taken.

        Several models are trained together, by one `loss` of them all, each from its values before the batch. `project`
        is called after each step, to put what was trained back where it must be; `clip` limits the gradient's norm.
        """
        ...

    def descend(
        self,
        start: Params,
        loss: Callable[[Params, Tensor, Tensor], Tensor],
        *,
        epochs: int | None = None,
        lr: float | None = None,
        project: Callable[[Params], Params] | None = None,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
        weights: Collection[str] = (),
    ) -> Params:
        """Plain gradient descent on quantities that are no module, all from their values before the batch.

        `project` puts each step's result back where it must be; the experiment's momentum and weight decay act on those
        named in `weights`, as in `sgd`; the rest is as for `batches`.
        """
        ...

    def window(self, share: float) -> Local:
        """This bench with a random contiguous share of the training samples, in the order of the data."""
        ...

    def hold_out(self, share: float) -> tuple[Local, tuple[Tensor, Tensor]]:
        """This bench without the samples it validates on, and these: the validation part, else a fixed share.

        Where there are too few samples to hold any out, it validates on all of them.
        """
        ...

    def features(self, body: nn.Module) -> Tensor:
        """[n, K]: the training samples through this body, in evaluation mode, in the order of the data."""
        ...

    def class_means(self, body: nn.Module) -> ClassMeans:
        """The exact mean feature of each class that this client holds."""
        ...
