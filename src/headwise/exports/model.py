"""A model ready to use, whether it comes from a run or from an exported folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from ..data.dataset import LabelType, cast_labels
from ..data.preprocessing import Unknown, warn_of_unknown
from ..errors import DataError, HeadwiseError, RunError
from ..tasks.registry import kind_of
from .card import FILES, write_folder
from .inputs import Inputs

if TYPE_CHECKING:
    from torch import nn

    from .quality import Importances

Format = Literal["onnx", "torch"]
ROWS = 4096
"""samples predicted at once"""


class Prediction(NamedTuple):
    """A model's outputs for some samples."""

    scores: NDArray[np.float32]
    """[n, classes, ...] or [n, labels] before softmax or sigmoid; [n, targets] in their units"""
    probabilities: NDArray[np.float32]
    """of the same shape; for quantities, the scores"""


class PackedModel(NamedTuple):
    """A model as its folder holds it."""

    card: dict[str, Any]
    format: Format
    data: bytes
    """the content of the file of this format"""
    network: Any = None
    """the user's own, which the weights belong to"""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """One client's model, or the global one, with the preprocessing of its data.

    `Run.model`, `Run.global_model`, `Run.adapt` and `load_model` return it. It predicts from samples as they were
    passed to `fit` or as the files have them, and its predictions have the type of the labels there.

    >>> model = run.model("va")
    >>> model.score(patients, diagnoses)
    1.0
    >>> model.save("models/va")
    PosixPath('models/va')
    """

    card: dict[str, Any]
    """description of the model: task, classes, inputs, metrics and training, as in card.json"""
    inputs: Inputs
    answer: Callable[[NDArray[Any]], Prediction]
    """from encoded samples; see `inputs`"""
    pack: Callable[[Format], PackedModel]
    """the model's folder in this format"""
    network: nn.Module | None = None

    def __repr__(self) -> str:
        of = self.card["of"]
        method = self.card["training"].get("method", {}).get("name", "?")
        whose = f"of {of['name']}" if "name" in of else of.get("kind", "")
        return f"<TrainedModel {whose}: {method}, round {of.get('round')}, {self.card['task']}; see .card>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of classes, labels or quantities."""
        return tuple(self.card["classes"])

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes in the type of the labels that were passed in, as scikit-learn has them."""
        if kind_of(self.card["task"]).quantitative:
            raise AttributeError("a regression has no classes_.")
        return cast_classes(self.classes, self.card["label_type"])

    @property
    def module(self) -> nn.Module:
        """The network itself, from preprocessed inputs to class scores; several heads or a mixture are one module."""
        if self.network is None:
            raise RunError("this model was loaded from a folder with an ONNX program: it has no module.")
        return self.network

    def state_dict(self) -> dict[str, Any]:
        """The network's weights; those of a network of your own under its own names, so that it can load them."""
        state = self.module.state_dict()
        head = getattr(self.module, "head_name", None)
        if head is None:
            return dict(state)
        own = {"body": "", "head": f"{head}." if head else ""}
        return {own[part] + rest: t for name, t in state.items() for part, _, rest in [name.partition(".")]}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its card and its file, which are checked again when they are loaded."""
        from .loading import restore_model

        try:
            packed = self.pack("torch")
            restore_model(*packed)
        except HeadwiseError:  # several networks, or one that only its own code can build
            packed = self.pack("onnx")
        return restore_model, packed

    def infer(self, raw: Any) -> Prediction:
        """Scores and probabilities of raw samples, as in the files, before any preprocessing."""
        return self.answer(self.encode(raw))

    def encode(self, raw: Any) -> NDArray[Any]:
        """Raw samples as the numbers that `answer` takes; warns of categories that training did not have."""
        unknown = Unknown()
        x = self.inputs.encode(self._list_samples(raw), unknown)
        warn_of_unknown(unknown)
        return x

    def predict_proba(self, raw: Any) -> NDArray[np.float32]:
        """[n, classes]: the probability of each class, or of each label; of each pixel's classes."""
        if kind_of(self.card["task"]).quantitative:
            raise RunError(f"task is {self.card['task']!r}, which predicts quantities: there are no probabilities.")
        return self.infer(raw).probabilities

    def predict(self, raw: Any) -> NDArray[Any]:
        """What the model predicts for each sample.

        [n] classes, in the type of the labels that were passed in; [n, labels] 0 or 1; [n] quantities, or [n, targets]
        of several; [n, height, width] numbers of classes.
        """
        return self.decide(self.infer(raw))

    def decide(self, prediction: Prediction) -> NDArray[Any]:
        """What `predict` returns, from scores that are already known."""
        kind = kind_of(self.card["task"])
        return kind.decode(prediction.scores, self.classes_ if kind.one_class else self.classes)

    def score(self, raw: Any, y: Any) -> float:
        """The run's metric on these samples and their true labels or quantities, such as the accuracy."""
        from .quality import score_samples

        return score_samples(self, raw, y)

    def importance(self, raw: Any, y: Any, *, repeats: int = 5, seed: int = 0) -> Importances:
        """Permutation importance of each feature on these samples: how much worse the run's metric gets without it.

        Args:
            raw: samples, as `predict` takes them.
            y: their true labels or quantities.
            repeats: how often each feature is shuffled.
            seed: of the shuffles.

        Returns:
            A row per feature with the mean and deviation over the shuffles, the most important feature first.

        >>> model.importance(patients, diagnoses)  # doctest: +SKIP
        accuracy 81.0 % on 50 samples, without one feature:
          age    worse by 21.2 % ± 3.0 %
          sex    worse by 0.4 % ± 1.1 %
        """
        from .quality import encode_pair, measure_importance

        return measure_importance(self, *encode_pair(self, raw, y), repeats, seed)

    def _list_samples(self, raw: Any) -> Any:
        """A frame's texts or images; a single text or path is one sample."""
        kind = {"tokens": "text", "image": "image"}.get(self.inputs.form)
        if kind is None:
            return raw
        if isinstance(raw, str | Path):
            return [raw]
        if not isinstance(raw, Mapping) and not hasattr(raw, "columns"):
            is_text = getattr(getattr(raw, "dtype", None), "kind", "") in ("O", "U", "T")
            return list(raw) if is_text else raw
        names = [*(raw if isinstance(raw, Mapping) else raw.columns)]
        known = self.card["reading"].get("features", {}).get(kind, ())
        column = next((name for name in names if str(name) in known), names[0] if len(names) == 1 else None)
        if column is None:
            what = f"the column {known[0]!r}" if known else "one column"
            raise DataError(f"samples have the columns {', '.join(map(str, names))}, but the model takes {what}.")
        return list(raw[column])

    def save(self, folder: str | Path, format: Format = "onnx") -> Path:
        """Write a folder that `load_model` reads.

        Args:
            folder: A new folder.
            format: "onnx" for a program that onnxruntime runs without Headwise; "torch" for the network's weights.

        Returns:
            The folder.

        Raises:
            ConfigError: If the format is unknown, needs a package, or can't hold this model.
            RunError: If what would be written predicts something else.
        """
        packed = self.pack(format)
        write_folder(Path(folder), packed.card, {FILES[format]: packed.data})
        return Path(folder)


def cast_classes(names: Sequence[str], kind: str) -> NDArray[Any]:
    """Names of classes in the type that labels had; raises `RunError` if a card's names are not of its type."""
    if kind not in get_args(LabelType):
        raise RunError(f"its label_type is {kind[:60]!r}, but must be one of {', '.join(get_args(LabelType))}.")
    try:
        return cast_labels(names, cast(LabelType, kind))
    except (ValueError, OverflowError):
        raise RunError(f"its classes are not of its label_type, {kind}: {', '.join(names)[:200]}.") from None


def predict_in_parts(x: NDArray[Any], answer: Callable[[NDArray[Any]], Prediction]) -> Prediction:
    """Predict some samples at a time, so that memory does not grow with their number."""
    starts = range(0, max(len(x), 1), ROWS)  # at least one part, which may be empty
    parts = [answer(x[at : at + ROWS]) for at in starts]
    return Prediction(*(np.concatenate(each) for each in zip(*parts, strict=True)))
