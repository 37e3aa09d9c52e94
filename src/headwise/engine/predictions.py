"""What models say about samples, in large passes without gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..benches import Predictor
from ..models.split import SplitModel
from .together import Work

STEADY = 32
"""A pass has at least this many rows. For fewer, libraries take other kernels, whose last bits differ: with it, what a
network says about a sample does not depend on the samples beside it."""


@torch.no_grad()
def passed(network: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """The network's output for all rows of `x`, `batch` of them at a time."""
    return torch.cat([_steady(network, part) for part in x.split(max(batch, STEADY))])


def _steady(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if len(x) >= STEADY or not len(x):
        return network(x)
    filled = torch.cat([x, x[:1].expand(STEADY - len(x), *x.shape[1:])])
    return network(_laid_out(filled, x))[: len(x)]


@dataclass(frozen=True)
class Prediction(Work):
    """A client's model on its samples. Clients with equal bodies share one pass through it; heads are their own."""

    section: ClassVar[str] = "evaluation"

    model: Predictor
    x: Tensor
    batch: int
    scores: list[Tensor] = field(default_factory=list[Tensor])
    """the result"""

    @property
    def key(self) -> Hashable:
        """Bodies of other shapes can't be equal; predictors of another kind are on their own."""
        if not isinstance(self.model, SplitModel) or type(self.model) is not SplitModel:  # a subclass may say otherwise
            return id(self)
        return tuple((k, t.shape) for k, t in self.model.body.state_dict().items()), self.x.shape[1:], self.batch

    def together(self, others: Sequence[Any]) -> None:
        """One pass per different body."""
        for same in _by_body([self, *others]):
            model = same[0].model
            if not isinstance(model, SplitModel):
                same[0].scores.append(passed(model, same[0].x, same[0].batch))
                continue
            joined = torch.cat([w.x for w in same]) if len(same) > 1 else same[0].x
            features = passed(model.body, _laid_out(joined, same[0].x), same[0].batch)
            for work, mine in zip(same, features.split([len(w.x) for w in same]), strict=True):
                assert isinstance(work.model, SplitModel)  # the key says so
                work.scores.append(passed(work.model.head, mine, work.batch))


def predict(model: Predictor, x: Tensor, batch: int) -> Prediction:
    """The work of asking this model about these samples, in evaluation mode."""
    if isinstance(model, nn.Module):
        model.eval()
    return Prediction(model, x, batch)


def _by_body(works: Sequence[Prediction]) -> list[list[Prediction]]:
    groups: list[tuple[dict[str, Tensor], list[Prediction]]] = []
    for work in works:
        body = work.model.body.state_dict() if isinstance(work.model, SplitModel) else {}
        for known, group in groups:
            if all(torch.equal(t, known[k]) for k, t in body.items()):
                group.append(work)
                break
        else:
            groups.append((body, [work]))
    return [group for _, group in groups]


def _laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Joining forgets how images lie in memory, and convolutions would take the slow way."""
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last) if last else x
