"""A predictor of several modules and tensors as one network."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Composed(nn.Module):
    """``forward(x) = rule(x, **parts)``: its parts are in `state_dict`, so it can be stored and exported as a whole.

    >>> from torch import zeros
    >>> both = Composed(lambda x, a, shift: a(x) + shift, a=nn.Linear(2, 3), shift=zeros(3))
    >>> sorted(both.state_dict())
    ['a.bias', 'a.weight', 'shift']
    """

    def __init__(self, rule: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self._rule, self._names = rule, tuple(parts)
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._rule(x, **{name: getattr(self, name) for name in self._names})
