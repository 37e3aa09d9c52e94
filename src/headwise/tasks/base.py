"""The contract of a task: its words and facts as a `TaskKind`, its mathematics as an `Objective`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from .registry import TaskName

Link = Literal["softmax", "sigmoid", "identity"]
DEFAULT: TaskName = "classification"
"""the task of data that names none"""


@dataclass(frozen=True)
class Task:
    """What a model must know about the data: the shape of a sample, what to predict, and the vocabulary of texts."""

    shape: tuple[int, ...]
    classes: int
    """outputs of the head: classes, labels, quantities, or the classes of pixels"""
    vocabulary: int = 0
    kind: TaskName = field(default=DEFAULT, repr=False)
    """the name of the `TaskKind`: what these outputs are"""
    centre: tuple[float, ...] = field(default=(), repr=False)
    """with `spread`, offset and scale of quantities, such as their mean and standard deviation"""
    spread: tuple[float, ...] = field(default=(), repr=False)


class Dense(NamedTuple):
    """Targets for kernels without autograd: the loss's gradient by the scores is weights * (link(scores) - targets)."""

    targets: Tensor
    """[n, outputs]: what the scores should mean"""
    weights: Tensor
    """[n, 1] or [n, outputs]: how much each counts in the loss of its sample"""
    link: Link
    """what scores mean"""


class Objective(ABC):
    """A task's loss with this run's options, and what its scores mean."""

    flat: bool = True
    """whether scores are [n, outputs], for which there are kernels without autograd"""
    is_plain: bool = False
    """whether the loss is the plain cross-entropy of classes, whose targets need not be dense"""

    @abstractmethod
    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """The mean over a batch."""

    @abstractmethod
    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """[n]: the loss of each sample of a batch, whose mean is `loss` but for rounding."""

    @abstractmethod
    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """How much larger the expected loss of the scores `q` is than that of `p`, if targets are as `p` predicts."""

    @abstractmethod
    def dense(self, y: Tensor) -> Dense:
        """The loss for kernels without autograd, if it is `flat`."""

    @abstractmethod
    def counts(self, y: Tensor) -> Tensor:
        """[outputs]: how many samples or pixels are of each class, have each label or each quantity."""

    @abstractmethod
    def guess(self, y: Tensor) -> Tensor:
        """The best constant scores for these targets."""

    def in_target_units(self, scores: Tensor) -> Tensor:
        """The scores as metrics take them: quantities in their own units, all others as they are."""
        return scores

    @abstractmethod
    def probabilities(self, scores: Tensor) -> Tensor:
        """Of classes or labels, in the shape of the scores; for quantities, which have none, their values."""


class TaskKind(ABC):
    """A kind of prediction. Code outside this room asks these questions and never compares names."""

    name: ClassVar[TaskName]
    noun: ClassVar[str]
    """what one output is called"""
    counted: ClassVar[str]
    """what predictions are counted in; empty where they are not counted"""
    default_metric: ClassVar[str]
    """the name of the main metric, unless the experiment names another"""
    target_figure: ClassVar[str]
    """what `describe_targets` prints"""
    exclusive: ClassVar[bool] = False
    """whether each sample or pixel has exactly one class"""
    per_pixel: ClassVar[bool] = False
    """whether scores are [n, classes, height, width]"""
    quantitative: ClassVar[bool] = False
    """whether outputs are quantities, which have a scale but no probabilities"""

    @property
    def one_class(self) -> bool:
        """Whether each sample has exactly one class."""
        return self.exclusive and not self.per_pixel

    @abstractmethod
    def objective(
        self, task: Task, weights: Tensor | None = None, smoothing: float = 0.0, device: str = "cpu"
    ) -> Objective:
        """The loss; `weights` are those of the classes, or of the ones of each label."""

    def balance(self, task: Task, y: Tensor, smoothing: float) -> Objective:
        """The loss in which every class that these targets have counts the same."""
        return self.objective(task, even_weights(self.objective(task).counts(y)), smoothing)

    def make_blank(self, task: Task, n: int) -> Tensor:
        """Targets of this task's type and shape for `n` samples: class after class, or zeros."""
        import torch

        return torch.zeros(n, task.classes)

    @abstractmethod
    def strata(self, y: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """A class for each sample and the classes' names, by which partitions divide samples and pages count them."""

    @abstractmethod
    def describe_targets(self, y: Any, outputs: int) -> list[str]:
        """A figure of these targets for each output, for tables."""

    @abstractmethod
    def decode(self, scores: Any, classes: Any) -> Any:
        """Predictions from an array of scores: [n] classes, [n, labels] 0 or 1, [n] or [n, targets], or masks."""

    def check_options(self, task: Task, weights: Sequence[float] | str | None, smoothing: float) -> None:
        """Raise unless these options of training suit the task."""
        if isinstance(weights, tuple) and len(weights) != task.classes:
            raise ConfigError(
                f"train.class_weights has {len(weights)} numbers, but must have one for each of the {task.classes} "
                "classes."
            )


def even_weights(counts: Tensor) -> Tensor:
    """Weights whose mean over everything counted is 1; what does not occur has weight 1."""
    occurs = counts > 0
    even = counts.sum(0) / (occurs.sum(0) * counts.clamp(min=1))
    return even.where(occurs, even.new_ones(()))
