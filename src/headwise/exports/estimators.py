"""Estimators for scikit-learn, which stays optional: groups of samples are clients, each with a model of its own."""

# ruff: noqa: N803, N806  as scikit-learn calls its arguments

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..app.fit import fit
from ..errors import ConfigError, HeadwiseError
from ..tasks.base import TaskKind
from ..tasks.classification import Classification
from ..tasks.regression import Regression
from .loading import restore_model
from .model import TrainedModel
from .run_models import take_rows

if TYPE_CHECKING:  # scikit-learn's own annotations are incomplete
    BaseEstimator = ClassifierMixin = RegressorMixin = Any
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    except ImportError:  # an estimator reports this when it is created

        class BaseEstimator: ...

        class ClassifierMixin: ...

        class RegressorMixin: ...


Array = NDArray[Any]
NEEDED = "scikit-learn>=1.6"
EVERYBODY = "all"
"""the only client of samples without groups"""


class _Personalized(BaseEstimator):
    """What both estimators have in common."""

    _kind: ClassVar[type[TaskKind]]
    __metadata_request__fit: ClassVar = {"groups": True, "sample_weight": True}
    __metadata_request__predict: ClassVar = {"groups": True}
    __metadata_request__score: ClassVar = {"groups": True}

    def __init__(
        self,
        method: Any = "fedper",
        *,
        group: str | int | None = None,
        unknown: str = "error",
        model: Any = None,
        rounds: int = 50,
        lr: float = 0.1,
        epochs: float = 1,
        batch: int = 32,
        random_state: Any = 0,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        if not find_spec("sklearn"):
            raise ConfigError(f"{type(self).__name__} needs scikit-learn: pip install '{NEEDED}'.")
        self.method = method
        self.group = group
        self.unknown = unknown
        self.model = model
        self.rounds = rounds
        self.lr = lr
        self.epochs = epochs
        self.batch = batch
        self.random_state = random_state
        self.settings = settings
        self.out = out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._kind.quantitative
        return tags

    def _fit(self, X: Any, y: Array, groups: Any, sample_weight: Any) -> Any:
        """Train on all samples: one client for each group, or a single one."""
        if self.unknown not in ("error", "mean"):
            raise ConfigError(f"unknown is {self.unknown!r}, but must be 'error' or 'mean'.")
        self._columns = list(X.columns) if _is_table(X) else None
        X, groups = self._take_groups(X, groups, len(y))
        self.groups_: Array | None = None
        names = [EVERYBODY]
        owner = np.zeros(len(y), np.int64)
        if groups is not None:
            self.groups_, owner = np.unique(groups, return_inverse=True)
            names = [str(group) for group in self.groups_]
        clients: dict[str, Any] = {}
        for k, name in enumerate(names):
            rows = np.flatnonzero(owner == k)
            clients[name] = ((take_rows(X, rows), y[rows]), (take_rows(X, rows[:0]), y[:0]))  # nothing is set aside
        if len(clients) < len(names):
            raise ConfigError("groups has different values of the same name, such as 1 and '1'.")
        self.sizes_ = np.bincount(owner, minlength=len(names))
        weights = None if sample_weight is None else _check_weights(sample_weight, X)
        by_client = None if weights is None else {name: weights[owner == k] for k, name in enumerate(names)}
        with tempfile.TemporaryDirectory(prefix="headwise-") as name:
            run = fit(
                clients,
                method=self.method,
                model=self.model,
                rounds=self.rounds,
                task=self._kind.name,
                out=self.out or Path(name) / "run",
                quiet=True,
                sample_weight=by_client,
                **self._experiment(),
            )
            self.models_ = [_detach(run.model(client)) for client in names]
        return self

    def _experiment(self) -> dict[str, Any]:
        from sklearn.utils import check_random_state

        state = self.random_state
        seed = state if isinstance(state, int) else int(check_random_state(state).randint(2**31 - 1))
        evaluation = {"every": self.rounds, "start": False}  # there are no samples to measure
        few = {"evaluate": evaluation, "engine": {"workers": 1}, "seed": seed}
        return {**few, "lr": self.lr, "epochs": self.epochs, "batch": self.batch, **(self.settings or {})}

    def _take_groups(self, X: Any, groups: Any, n: int) -> tuple[Any, Array | None]:
        """The samples without their column of groups, and the groups; None if there are none."""
        if self.group is None:
            return X, None if groups is None else _check_groups(groups, n)
        if groups is not None:
            raise ConfigError(f"groups is given, but group is {self.group!r}, a column of X: give only one of them.")
        if isinstance(X, Mapping) or _is_table(X):
            if self.group not in list(X):
                raise ConfigError(f"group is {self.group!r}, which is not a column of X.")
            own = _check_groups(X[self.group], n)
            if isinstance(X, Mapping):
                return {name: column for name, column in X.items() if name != self.group}, own
            return X.drop(columns=self.group), own
        if not isinstance(self.group, int) or not -X.shape[1] <= self.group < X.shape[1]:
            raise ConfigError(f"group is {self.group!r}, but X is an array with {X.shape[1]} columns.")
        rest = np.delete(X, self.group, axis=1)
        return rest.astype(np.float64) if rest.dtype.kind == "O" else rest, _check_groups(X[:, self.group], n)

    def _validate_pair(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        """As scikit-learn validates; a table stays one, so that its categories and texts can be encoded."""
        from sklearn.utils import validation

        checker: Any = validation
        if not _is_table(X) or y is None:
            return checker.validate_data(self, X, y, dtype="numeric" if self.group is None else None, **checks)
        checker.validate_data(self, X, skip_check_array=True)
        if not len(X):
            raise ValueError("X has 0 samples, but fit needs at least one.")
        _, y = checker.check_X_y(np.zeros((len(y), 1)), y, dtype=None, **checks)
        checker.check_consistent_length(X, y)
        return X, y

    def _apply(self, X: Any, groups: Any) -> Array:
        """[n, outputs]: each sample by its own group's model."""
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self)
        if _is_table(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            X = validate_data(self, X, reset=False, dtype="numeric" if self.group is None else None)
        n = len(X)
        X, groups = self._take_groups(self._name_columns(X), groups, n)
        owner = self._find_models(groups, n)
        outputs: Array = np.empty((len(owner), len(self.models_[0].classes)))
        for k in np.unique(owner):
            rows = np.flatnonzero(owner == k)
            part = take_rows(X, rows)
            if k >= 0:
                outputs[rows] = self._outputs(self.models_[k], part)
            else:
                each = [self._outputs(model, part) for model in self.models_]
                outputs[rows] = np.average(each, axis=0, weights=self.sizes_)
        return outputs

    def _name_columns(self, X: Any) -> Any:
        """An array as columns, if a table was passed to `fit`; and a table as an array, if that was."""
        if self._columns is None:
            return np.asarray(X)
        return X if _is_table(X) else {name: X[:, k] for k, name in enumerate(self._columns)}

    def _find_models(self, groups: Array | None, n: int) -> Array:
        """The number of each sample's model; -1 for the mean of all."""
        if self.groups_ is None:
            if groups is not None:
                raise ConfigError("groups is given, but fit had no groups: there is only one model.")
            return np.zeros(n, np.int64)
        if groups is None:
            owner = np.full(n, -1)
        else:
            place = {group: k for k, group in enumerate(self.groups_.tolist())}
            owner = np.array([place.get(group, -1) for group in groups.tolist()], np.int64)
        if self.unknown == "error" and (owner < 0).any():
            first = None if groups is None else groups[owner < 0].tolist()[0]
            what = "groups is missing" if groups is None else f"groups has {first!r}, which fit did not have"
            hint = "each sample needs a group that fit had, or unknown='mean' for the mean of all models"
            raise ConfigError(f"{what}: {hint}.")
        return owner

    def _outputs(self, model: TrainedModel, X: Any) -> Array:
        """Probabilities in the order of the classes, or quantities."""
        if self._kind.quantitative:
            return model.predict(X).reshape(-1, len(model.classes)).astype(np.float64)
        probabilities = model.predict_proba(X).astype(np.float64)
        return probabilities[:, np.argsort(model.classes_)] / probabilities.sum(1, keepdims=True)


class PersonalizedClassifier(ClassifierMixin, _Personalized):
    """A classifier for scikit-learn with a model for each group of samples, such as a hospital.

    Groups are the clients of a simulated federation: their models are trained together by a method, and each predicts
    its own group. All samples are used for training. Without groups there is one client, which is ordinary training.

    Args:
        method: as in `fit`; "fedper" shares all layers but the last.
        group: the column of X with the groups (its index, if X is an array), instead of ``groups=`` in `fit` and
            `predict`. It is not used as a feature.
        unknown: how to predict samples without a group, or of a group that `fit` did not see: "error", or "mean" for
            the mean of all models, weighted by their samples.
        model: the network, as in `fit`.
        rounds: rounds of training.
        lr: the learning rate.
        epochs: epochs of each round.
        batch: samples of each step.
        random_state: a number, a RandomState, or None for a different one each time.
        settings: further settings of `fit`, such as ``{"optimizer": "adam", "class_weight": "balanced"}``.
        out: a folder that keeps the run; by default, it is deleted after `fit`.

    Attributes:
        classes_: the classes, in the type of y.
        groups_: the groups; None if there were none.
        models_: the model of each group, as `Run.model` returns it.

    >>> model = PersonalizedClassifier("fedah", rounds=20)
    >>> model.fit(x, y, groups=hospitals).predict(patients, groups=["h0", "h1"])
    array(['healthy', 'ill'], dtype='<U7')
    """

    _kind: ClassVar[type[TaskKind]] = Classification
    __metadata_request__predict_proba: ClassVar = {"groups": True}

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Any:
        """Train on all samples, with the group of each, and perhaps its weight in the loss."""
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d

        X, y = self._validate_pair(X, y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}, but a classifier needs two or more.")
        return self._fit(X, numbers, groups, sample_weight)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The class of each sample, by its group's model."""
        numbers = self.predict_proba(X, groups).argmax(1)
        return self.classes_[numbers]

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """[n, classes]: their probabilities, in the order of `classes_`."""
        return self._apply(X, groups)

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """The accuracy."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class PersonalizedRegressor(RegressorMixin, _Personalized):
    """A regressor for scikit-learn with a model for each group of samples, such as a hospital.

    Parameters and attributes are those of `PersonalizedClassifier`; y may have several columns.

    >>> model = PersonalizedRegressor("fedper", lr=0.05, rounds=20)
    >>> model.fit(x, x[:, 0], groups=hospitals).predict(patients, groups=["h0", "h1"]).shape
    (2,)
    """

    _kind: ClassVar[type[TaskKind]] = Regression

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Any:
        """Train on all samples, with the group of each, and perhaps its weight in the loss."""
        X, y = self._validate_pair(X, y, multi_output=True, y_numeric=True)
        self._one_target = y.ndim == 1
        return self._fit(X, np.asarray(y, np.float64), groups, sample_weight)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """[n], or [n, targets] if y had several columns: by each sample's group's model."""
        outputs = self._apply(X, groups)
        return outputs[:, 0] if self._one_target else outputs

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """R², the share of the variance that is explained."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))


def _is_table(samples: Any) -> bool:
    return hasattr(samples, "columns")


def _check_groups(groups: Any, n: int) -> Array:
    values = np.asarray(groups)
    if values.ndim != 1 or len(values) != n:
        raise ConfigError(f"groups has the shape {list(values.shape)}, but X has {n} samples, and each needs a group.")
    if any(value is None or value != value for value in values.tolist()):
        raise ConfigError("groups has missing values, but each sample needs a group.")
    return values


def _check_weights(weights: Any, X: Any) -> Array:
    from sklearn.utils import validation

    checker: Any = validation
    return checker._check_sample_weight(weights, X, dtype=np.float64)


def _detach(model: TrainedModel) -> TrainedModel:
    """A copy that does not need its run, and keeps its bits when pickled; only for our own networks."""
    try:
        return restore_model(*model.pack("torch"))
    except HeadwiseError:  # several networks, or one that only its own code can build
        return model
