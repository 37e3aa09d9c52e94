"""Augmentations of a user's own: tried on a batch before a run begins, and passed again when it resumes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..engine.client.augmenting import by_function
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..settings.experiment import Experiment
from ..settings.functions import SESSION, Augmentation


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


def session_functions(experiment: Experiment) -> list[Any]:
    """The functions that only this Python session has."""
    return [a.given for a in experiment.train.augment if a.given is not None]


def with_functions(experiment: Experiment, augment: Any, folder: Path) -> Experiment:
    """A run's own experiment, with the functions that only a Python session has, passed again."""
    wanted = [a.called for a in experiment.train.augment if a.name.startswith(SESSION)]
    again = list(augment) if isinstance(augment, (list, tuple)) else [] if augment is None else [augment]
    if len(again) != len(wanted):
        how = f"headwise.resume({str(folder)!r}, augment=[{', '.join(wanted)}])"
        raise RunError(f"{folder} uses {', '.join(wanted) or 'no function of a notebook'}: resume it as {how}.")
    left = iter(again)

    def given(a: Augmentation) -> Augmentation:
        return dataclasses.replace(a, given=next(left)) if a.name.startswith(SESSION) else a

    changes = tuple(given(a) for a in experiment.train.augment)
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, augment=changes))
