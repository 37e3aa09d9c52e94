"""Noise on class means. All classes are sent: those the client lacks are zeros under the same noise."""

from __future__ import annotations

import dataclasses

import torch

from ..contract.benches import ClassMeans
from ..errors import AccountingError
from ..params import Params
from ..records import Record, fields_of
from .gaussian import ClientGaussian


class NoisyMeans(ClientGaussian):
    """Protects class means, as one vector, and hides which classes the client holds."""

    name = "noisy-means"
    messages = (ClassMeans,)

    def noisy(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        assert isinstance(up, ClassMeans)  # as the method says in its bases
        rest = [f for f in fields_of(type(up)) if f not in ("labels", "means") and getattr(up, f) is not None]
        if rest:
            raise AccountingError(f"it sends {', '.join(rest)} besides class means, which can't be protected")
        held = up.labels >= 0
        means = up.means.new_zeros(classes, up.means.shape[1]).index_copy(0, up.labels[held].long(), up.means[held])
        noisy = self.clipped(Params(means=means), rng)["means"]
        return dataclasses.replace(up, labels=torch.arange(classes, dtype=torch.int32), means=noisy)
