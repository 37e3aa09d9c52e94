"""Samples and targets as a data source yields them, before they are divided among clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..settings.fields import Checked
from ..settings.options import TargetRange, TaskName
from ..tasks.base import DEFAULT
from ..tasks.registry import kind_of

if TYPE_CHECKING:
    from .preprocessing import Preprocessing

LabelType = Literal["str", "int", "float", "bool", "datetime"]
"""the type of a target's classes in the user's data; class names are always strings"""


def cast_labels(classes: Sequence[str], label_type: LabelType) -> NDArray[Any]:
    """The classes in their own type, in the same order, so that predictions compare equal to the user's labels.

    >>> cast_labels(("False", "True"), "bool")
    array([False,  True])
    """
    if label_type == "bool":
        return np.array([name.lower() in ("1", "true") for name in classes])
    kind = {"int": np.int64, "float": np.float64, "datetime": "datetime64[ns]"}.get(label_type)
    return np.array(classes, dtype=object).astype(str if kind is None else kind)


class Strata(NamedTuple):
    """The class of each sample, and the classes' names."""

    labels: NDArray[np.int64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """Samples, labels and metadata. The public training set comes first, then the public test set."""

    x: NDArray[Any]
    """[n, ...]: uint8 images [n, channels, height, width], float32 features, or int32 tokens [n, length]"""
    y: NDArray[Any]
    """[n] labels from 0 to classes - 1; for other tasks as `own.load.Targets` has them"""
    classes: tuple[str, ...]
    """the names of classes, labels or quantities"""
    mean: tuple[float, ...] = ()
    """with `std`, per channel: uint8 images become (x / 255 - mean) / std; empty: x is used unchanged"""
    std: tuple[float, ...] = ()
    official_test: NDArray[np.bool_] | None = None
    """[n] which samples belong to the public test set, if there is one"""
    owner: NDArray[np.int64] | None = None
    """[n] the natural client of each sample (hospital, domain), if the data has natural clients"""
    owners: tuple[str, ...] = ()
    """the natural clients' names"""
    vocabulary: int = 0
    """number of tokens, for text"""
    notes: tuple[str, ...] = ()
    """what a user should know about this copy of the data, such as that it is a subset"""
    task: TaskName = DEFAULT
    """the kind of prediction, which decides the type and shape of the targets"""
    target_range: TargetRange | None = None
    """the declared range of a regression's targets; none: the mean and deviation of training targets are used"""
    part: NDArray[np.int8] | None = None
    """[n] 0, 1 or 2: training, validation or test, if the data assigns each sample to a part"""
    weight: NDArray[np.float32] | None = None
    """[n] each sample's weight in the training loss, at least 0; None: all count the same"""
    split: str = "75/25"
    """how to divide a client's samples if `part` is not set"""
    recipe: Preprocessing | None = None
    """preprocessing, fitted on training samples and applied to all; None: x is used as described above"""
    model: str = ""
    """the default model, if it depends on the data; empty: the source's default"""
    label_type: LabelType = "str"
    """the type in which predictions return classes, see `cast_labels`"""

    @cached_property
    def strata(self) -> Strata:
        """A class for each sample, in any task: partitions divide by it, and figures show who holds what."""
        return Strata(*kind_of(self.task).strata(self.y, self.classes))

    def with_range(self, declared: TargetRange | None) -> Dataset:
        """The data set with the experiment's target range; the data may declare the same one, or none."""
        if (known := self.target_range or declared) is None:
            return self
        if declared not in (None, known):
            raise ConfigError(f"target_range is {declared.to_plain()}, but the data declares {known.to_plain()}.")
        if not kind_of(self.task).quantitative:
            raise ConfigError(
                f"target_range is {known.to_plain()}, but task is {self.task!r}, which has no quantities."
            )
        if len(known.pairs) != len(self.classes):
            raise ConfigError(
                f"target_range is {known.to_plain()}, but needs a pair for each target: {', '.join(self.classes)}."
            )
        return replace(self, target_range=known)

    def subset(self, kept: NDArray[np.int64]) -> Dataset:
        arrays = {name: getattr(self, name) for name in ("x", "y", "official_test", "owner", "part", "weight")}
        return replace(self, **{name: a[kept] for name, a in arrays.items() if a is not None})


class Source(Checked, ABC):
    """A data set that can be found or downloaded, and read. Subclasses are frozen dataclasses; fields are options."""

    kind: ClassVar[str] = "data"
    default_model: ClassVar[str] = "cnn"
    """the model to use when none is named"""

    @abstractmethod
    def load(self, folder: Path) -> Dataset:
        """Read the public files below `folder`, downloading missing ones first."""


Part = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""images [n, channels, height, width] and their labels"""


def merge_parts(parts: list[Part], classes: tuple[str, ...], tests: int = 1) -> Dataset:
    """One data set of public images, scaled to -1 to 1; the last parts, `tests` of them, are the public test images.

    Parts leave the list as they are copied, so that memory never holds all images twice.
    """
    y = np.concatenate([labels for _, labels in parts])
    trains = sum(len(labels) for _, labels in parts[: len(parts) - tests])
    is_test = np.arange(len(y)) >= trains
    shape = parts[0][0].shape[1:]
    x = np.empty((len(y), *shape), np.uint8)
    at = 0
    while parts:
        images, _ = parts.pop(0)
        x[at : at + len(images)] = images
        at += len(images)
        del images
    half = (0.5,) * shape[0]
    return Dataset(x, y, classes, mean=half, std=half, official_test=is_test)
