"""What the experiment's optimiser settings mean for a training phase."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ...params import Params, step
from ...settings.updates import Updates
from ..kernels.base import Adam, Rates
from ..kernels.descent import Descent, clipped


def rates_of(settings: Updates, lr: float, clip: float | None = None) -> Rates:
    """What kernels go by; a method's own `clip` comes before the experiment's."""
    (beta1, beta2), name = settings.betas, settings.optimizer
    adam = None if name == "sgd" else Adam(beta1, beta2, settings.eps, decoupled=name == "adamw")
    return Rates(lr, settings.momentum, settings.weight_decay, settings.clip if clip is None else clip, adam)


class ParamsDescent:
    """Plain steps on parameters outside any module, and the experiment's on those of them that are `weights`."""

    def __init__(self, settings: Updates, start: Params, weights: Collection[str], lr: float) -> None:
        self._settings, self._lr = settings, lr
        self._weights = [k for k in start if k in set(weights)]
        heavy = self._weights if settings.momentum or settings.weight_decay else ()
        sgd = settings.optimizer == "sgd"
        self._velocity = {k: torch.zeros_like(start[k]) for k in heavy} if sgd else {}
        self._own: dict[str, Tensor] = {} if sgd else {k: start[k].detach().clone() for k in self._weights}
        self._descent = Descent(list(self._own.values()), **rates_of(settings, lr)._asdict())

    def step(self, now: Params, slope: Params) -> Params:
        settings = self._settings
        if settings.clip is not None:
            shorter = clipped([slope[k] for k in self._weights], settings.clip)
            slope = Params({**slope, **dict(zip(self._weights, shorter, strict=True))})
        for k, v in self._velocity.items():
            self._velocity[k] = settings.momentum * v + slope[k] + settings.weight_decay * now[k]
        moved = step(now, Params({**slope, **self._velocity}), self._lr)
        for k, own in self._own.items():  # its moments belong to one tensor, which a projection may replace
            self._descent.move(own.copy_(now[k]), slope[k])
        return Params({**moved, **{k: own.clone() for k, own in self._own.items()}})
