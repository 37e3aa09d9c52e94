"""A model ready to use, whether it comes from a run or from an exported folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.preprocessing import Unknown, warn_of_unknown
from ..errors import RunError
from .inputs import Inputs

if TYPE_CHECKING:
    from torch import nn

Format = Literal["onnx", "torch"]
ROWS = 4096
"""samples predicted at once"""


class Prediction(NamedTuple):
    """A model's outputs for some samples."""

    scores: NDArray[np.float32]
    """[n, classes, ...] or [n, labels] before softmax or sigmoid; [n, targets] in their units"""
    probabilities: NDArray[np.float32]
    """of the same shape; for quantities, the scores"""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """One client's model, or the global one."""

    card: dict[str, Any]
    """what it is: task, classes, inputs, metrics, how it was trained; as card.json has it"""
    inputs: Inputs
    answer: Callable[[NDArray[Any]], Prediction]
    """from encoded samples; see `inputs`"""
    network: nn.Module | None = None
    write: Callable[[Path, Format], None] | None = None
    """how to save it; none for one that was loaded"""

    def __repr__(self) -> str:
        of = self.card["of"]
        method = self.card["training"].get("method", {}).get("name", "?")
        whose = f"of {of['name']}" if "name" in of else of.get("kind", "")
        return f"<TrainedModel {whose}: {method}, round {of.get('round')}, {self.card['task']}; see .card>"

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.card["classes"])

    @property
    def module(self) -> nn.Module:
        """The network itself, from preprocessed inputs to class scores; several heads or a mixture are one module."""
        if self.network is None:
            raise RunError("this model was loaded from a folder with an ONNX program: it has no module.")
        return self.network

    def infer(self, raw: Any) -> Prediction:
        """Scores and probabilities of raw samples: what the data had in the files, before any preprocessing."""
        unknown = Unknown()
        x = self.inputs.encode(raw, unknown)
        warn_of_unknown(unknown)
        return self.answer(x)

    def predict_proba(self, raw: Any) -> NDArray[np.float32]:
        """[n, classes]: the probability of each class, or of each label; of each pixel's classes."""
        if self.card["task"] == "regression":
            raise RunError("task is 'regression', which predicts quantities: there are no probabilities.")
        return self.infer(raw).probabilities

    def predict(self, raw: Any) -> NDArray[Any]:
        """[n] names of classes; [n, labels] 0 or 1; [n, targets] quantities; [n, height, width] numbers of classes."""
        return self.decide(self.infer(raw))

    def decide(self, prediction: Prediction) -> NDArray[Any]:
        """What `predict` returns, from scores that are known already."""
        task = self.card["task"]
        scores = prediction.scores
        if task == "classification":
            return np.array(self.classes, dtype=object)[scores.argmax(1)]
        if task == "multilabel":
            return (scores > 0).astype(np.int64)
        return scores if task == "regression" else scores.argmax(1)

    def save(self, folder: str | Path, format: Format = "onnx") -> Path:
        """Write a folder that `hw.load_model` reads: an ONNX program, or weights and the name of their network."""
        if self.write is None:
            raise RunError("this model was loaded from a folder: copy that folder instead.")
        self.write(Path(folder), format)
        return Path(folder)


def predict_in_parts(x: NDArray[Any], answer: Callable[[NDArray[Any]], Prediction]) -> Prediction:
    """Predict some samples at a time, so that memory does not grow with their number."""
    starts = range(0, max(len(x), 1), ROWS)  # at least one part, which may be empty
    parts = [answer(x[at : at + ROWS]) for at in starts]
    return Prediction(*(np.concatenate(each) for each in zip(*parts, strict=True)))
