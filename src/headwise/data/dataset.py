"""What a source of data yields: all samples in one array each, before anything is divided over clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..settings.options import TaskName
from .strata import Strata, strata

if TYPE_CHECKING:
    from .preprocessing.fitting import Preprocessing


@dataclass(frozen=True)
class Dataset:
    """Samples, labels, and what is known about them. The public train and test sets are merged, in this order."""

    x: NDArray[Any]
    """[n, ...]: uint8 images [n, channels, height, width], float32 features, or int32 tokens [n, length]"""
    y: NDArray[Any]
    """[n] labels from 0 to classes - 1; for other tasks as `own.targets.Targets` has them"""
    classes: tuple[str, ...]
    """the names of classes, labels or quantities"""
    mean: tuple[float, ...] = ()
    """with `std`, per channel: uint8 images become (x / 255 - mean) / std; empty: x is used as it is"""
    std: tuple[float, ...] = ()
    official_test: NDArray[np.bool_] | None = None
    """[n] which samples belong to the public test set, where there is one"""
    owner: NDArray[np.int64] | None = None
    """[n] the natural client of each sample (hospital, domain), where there is one"""
    owners: tuple[str, ...] = ()
    """the natural clients' names"""
    vocabulary: int = 0
    """number of tokens, for text"""
    notes: tuple[str, ...] = field(default=())
    """what a user should know about this copy of the data, for instance that it is a subset"""
    task: TaskName = "classification"
    """what kind of prediction"""
    part: NDArray[np.int8] | None = None
    """[n] 0, 1, 2: whether its owner wants a sample for training, validation or test, where the data says so"""
    split: str = "75/25"
    """how to divide a client's samples where the data does not say it"""
    recipe: Preprocessing | None = None
    """what is fitted on training samples and done to all; none: x is used as described above"""
    model: str = ""
    """the model that suits it, where only the data tells; else it is the source's"""

    @cached_property
    def strata(self) -> Strata:
        """A class for each sample, whatever the task."""
        return strata(self.task, self.y, self.classes)

    def subset(self, kept: NDArray[np.int64]) -> Dataset:
        """Only these samples."""
        test = None if self.official_test is None else self.official_test[kept]
        owner = None if self.owner is None else self.owner[kept]
        part = None if self.part is None else self.part[kept]
        return replace(self, x=self.x[kept], y=self.y[kept], official_test=test, owner=owner, part=part)


class Source(ABC):
    """A data set that can be located, or downloaded, and read. A frozen dataclass; its fields are its options."""

    default_model: ClassVar[str] = "cnn"
    """the model that is used when none is named"""

    @abstractmethod
    def load(self, folder: Path) -> Dataset:
        """Read the public files below `folder`, fetching them into it first if they are missing."""
