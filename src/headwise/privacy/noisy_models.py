"""Noise on shared models: a client's change to the model it was sent is clipped and gets noise.

McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018. https://arxiv.org/abs/1710.06963
"""

from __future__ import annotations

import torch

from ..contract.averaging import Shared
from ..errors import AccountingError
from ..records import Nothing, Record, fields_of
from .gaussian import ClientGaussian


class NoisyModels(ClientGaussian):
    """Protects a shared model with the same parameters as the one sent to the client."""

    name = "noisy-models"
    messages = (Shared, Nothing)

    def noisy(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        if isinstance(up, Shared) and isinstance(down, Shared):
            sent, received = ({name: t.shape for name, t in r.w.items()} for r in (up, down))
            if sent == received:
                return Shared(down.w + self.clipped(up.w - down.w, rng))
        raise AccountingError(f"what it sends ({', '.join(fields_of(type(up)))}) has no known sensitivity")
