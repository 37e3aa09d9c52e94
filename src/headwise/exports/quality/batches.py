"""The metrics of samples that come batch by batch, since a file may have more of them than memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.client.scores import score_of
from ...log.metrics import Metric, Score
from ...log.predictions import Predictions, Tally
from ..model import Said
from .details import BINS, binned, certainty

Array = NDArray[Any]


class Measuring:
    """Counts and means of all batches; their scores only for quantities, and for metrics such as AUC."""

    def __init__(self, task: str, wanted: Sequence[Metric]) -> None:
        self.task, self.wanted, self.tally, self.bins = task, wanted, Tally(task), np.zeros((3, BINS))
        self._keeping = task == "regression" or any(m.needs == "all" for m in wanted)
        self._batches = list[tuple[Array, Array]]()
        self._sums = dict[str, float]()

    def add(self, said: Said, y: Array) -> None:
        batch = Predictions(torch.from_numpy(said.scores), torch.from_numpy(y), self.task)
        found = score_of(batch, self._that_need("mean"))
        self._sums = {m.name: self._sums.get(m.name, 0.0) + found[m.name] * batch.n for m in self._that_need("mean")}
        self.tally.add(batch)
        if self.task != "regression":
            self.bins += binned(*certainty(self.task, said.probabilities, said.scores, y))
        if self._keeping:
            self._batches.append((said.scores, y))

    @cached_property
    def kept(self) -> tuple[Array, Array]:
        """All scores and targets, where they are kept."""
        z, y = (np.concatenate(each) for each in zip(*self._batches, strict=True))
        self._batches.clear()
        return z, y

    def scores(self) -> Score:
        found = score_of(self.tally, self._that_need("counts"))
        found |= {name: total / self.tally.n for name, total in self._sums.items()}
        if self._keeping:
            z, y = map(torch.from_numpy, self.kept)
            found |= score_of(Predictions(z, y, self.task), self._that_need("all"))
        return found

    def _that_need(self, what: str) -> list[Metric]:
        return [m for m in self.wanted if m.needs == what]
