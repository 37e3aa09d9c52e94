"""How a client's optimiser steps: the part of `[train]` that is about single steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..errors import ConfigError
from .fields import Epochs, NonNegative, Positive, Range
from .functions import Augmentation

Beta = Annotated[float, Range(0, 0.999999)]


@dataclass(frozen=True, kw_only=True)
class Updates:
    """How many steps a client takes in a round, and what a step does."""

    epochs: Epochs | Annotated[float, Range(0, 10_000, above=True)] = 1
    """passes over a client's data per round; a fraction of a pass is rounded up to whole batches"""
    steps: Annotated[int, Range(1, 10**6)] | None = None
    """steps per round, however much data a client has; none: as many as `epochs` gives"""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """what takes the steps; its state is fresh in every training phase"""
    momentum: NonNegative = 0.0
    """momentum of sgd, reset at the start of every training phase"""
    weight_decay: NonNegative = 0.0
    """weight decay: added to the gradient, or, with adamw, taken off the weights"""
    betas: tuple[Beta, ...] = (0.9, 0.999)
    """decay of adam's means of the gradient and of its square"""
    eps: Positive = 1e-8
    """what adam adds to the square root that it divides by"""
    clip: Positive | None = None
    """largest norm of a step's gradient; none: whatever it is"""
    augment: tuple[Augmentation, ...] = ()
    """random changes to training samples, in this order: flip (half of the images, left to right), crop (images shifted
    by up to an eighth, edges repeated), or a function of your own: package.module:function or file.py:function"""

    def check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if len(self.betas) != 2:
            raise ConfigError(f"train.betas is {list(self.betas)}, but must be two numbers, like [0.9, 0.999].")
        if self.optimizer != "sgd" and self.momentum:
            said = f"train.optimizer is {self.optimizer!r}, which has train.betas instead"
            raise ConfigError(f"train.momentum is {self.momentum:g}, but {said}.")
        if self.steps is not None and self.epochs != 1:
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs:g}, but only one can be set.")
        if len(set(self.augment)) < len(self.augment):
            raise ConfigError(f"train.augment is {[a.name for a in self.augment]}, but must name each change once.")
