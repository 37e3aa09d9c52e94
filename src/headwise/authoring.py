"""Everything that a method may import: its contract, what travels, the types of its options, and shared mathematics.

from headwise.authoring import Averaging, Local, Nothing, Predictor, Shared, Update

Headwise's own methods import nothing else, so each of their files works anywhere: copy it, change it, and run it with
``--method ./copy.py``. `headwise.testing.check_method` checks a method.
"""

from __future__ import annotations

from .contract.averaging import Averaged, Averaging, GlobalModel, Shared
from .contract.benches import Bench, Central, ClassMeans, Local, Predictor, split_epochs
from .contract.method import Method, OwnBody, OwnHead, OwnModel, Reply, Update, join_by_training
from .models.split import Composed, SplitModel, has_batchnorm, split_norms
from .params import (
    Params,
    descend,
    differentiate_along,
    gradient,
    kl,
    last_matrix,
    mark_largest,
    mean,
    merge_by_client,
    mmd,
    project_to_simplex,
    shuffle,
    step,
)
from .records import Nothing, Record
from .settings.fields import Count, Epochs, EpochsOrNone, Natural, NonNegative, Positive, Range, Share, Unit

__all__ = [
    "Averaged",
    "Averaging",
    "Bench",
    "Central",
    "ClassMeans",
    "Composed",
    "Count",
    "Epochs",
    "EpochsOrNone",
    "GlobalModel",
    "Local",
    "Method",
    "Natural",
    "NonNegative",
    "Nothing",
    "OwnBody",
    "OwnHead",
    "OwnModel",
    "Params",
    "Positive",
    "Predictor",
    "Range",
    "Record",
    "Reply",
    "Share",
    "Shared",
    "SplitModel",
    "Unit",
    "Update",
    "descend",
    "differentiate_along",
    "gradient",
    "has_batchnorm",
    "join_by_training",
    "kl",
    "last_matrix",
    "mark_largest",
    "mean",
    "merge_by_client",
    "mmd",
    "project_to_simplex",
    "shuffle",
    "split_epochs",
    "split_norms",
    "step",
]
