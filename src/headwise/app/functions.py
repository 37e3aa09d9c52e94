"""Augmentations of a user's own, tried on a batch before a run begins."""

from __future__ import annotations

import torch

from ..engine.client.augmenting import by_function
from ..engine.plan import Plan
from ..errors import ConfigError


def check_augment(plan: Plan) -> None:
    """Raise unless each function works, and the same draws give the same batch: otherwise no run could be repeated."""
    own = [a for a in plan.experiment.train.augment if not a.is_built_in]
    if not own or plan.data.told is not None:
        return
    data = plan.data.client(next(c for c in range(len(plan.data)) if plan.data.sizes(c)[0])).train
    x, y = data.x[:8], data.y[:8]
    for change in own:
        try:
            (first, a), (again, b) = (by_function(x, y, change, torch.Generator().manual_seed(0)) for _ in range(2))
        except ConfigError:
            raise
        except Exception as error:  # another's code can raise anything
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"train.augment is {change.called!r}, which failed on a batch: {why}.") from error
        if not (torch.equal(first, again) and torch.equal(a, b)):
            why = "which gives another batch when called again: draw from the generator that it is given"
            raise ConfigError(f"train.augment is {change.called!r}, {why}.")
