"""The estimators for scikit-learn: its own checks, and its tools with groups as clients."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import headwise as hw
from headwise.errors import ConfigError, DataError
from waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scikit-learn.md"
BY_BATCH = {"check_sample_weight_equivalence_on_dense_data": "a sample of weight 0 or 2 is still one of a random batch"}
EXPECTED_FAILURES: dict[str, dict[str, str]] = {
    "PersonalizedClassifier": BY_BATCH,
    "PersonalizedRegressor": {
        **BY_BATCH,
        "check_methods_subset_invariance": "networks compute in float32: the last bit may depend on the batch",
    },
}
N = 120
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 3))
GROUPS = np.array(["va", "rome", "oslo"])[np.arange(N) % 3]
Y = np.where((X[:, 0] > 0) ^ (GROUPS == "rome"), "ill", "well")
FRAME = pd.DataFrame(X, columns=["age", "pulse", "weight"]).assign(hospital=GROUPS)


def classifier(**options: Any) -> Any:
    return hw.PersonalizedClassifier(**{"rounds": 30, "lr": 0.3, **options})


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("kind", [hw.PersonalizedClassifier, hw.PersonalizedRegressor])
def test_scikit_learns_own_checks(kind: Any) -> None:
    """All pass but those named above, and the page says how many there are."""
    expected = EXPECTED_FAILURES[kind.__name__]
    with warnings.catch_warnings(action="ignore"):
        results = check_estimator(kind(), expected_failed_checks=expected, on_fail=None, on_skip=None)
    counts = Counter(str(each["status"]) for each in results)
    assert [each["check_name"] for each in results if each["status"] == "failed"] == []
    assert counts["xfail"] <= len(expected)
    total = len(results) - counts["skipped"]
    printed = re.search(rf"`{kind.__name__}` passes (\d+) of (\d+)", PAGE.read_text(encoding="utf-8"))
    assert printed is not None
    assert [int(number) for number in printed.groups()] == [total - len(expected), total]


def test_the_page_names_each_exception() -> None:
    for checks in EXPECTED_FAILURES.values():
        assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in checks)


def test_each_group_has_a_model() -> None:
    model = classifier().fit(X, Y, groups=GROUPS)
    assert model.score(X, Y, groups=GROUPS) > 0.9
    assert model.classes_.tolist() == ["ill", "well"]
    assert model.groups_.tolist() == ["oslo", "rome", "va"]
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    other = np.where(GROUPS == "va", "rome", "va")
    assert model.score(X[GROUPS == "va"], Y[GROUPS == "va"], groups=other[GROUPS == "va"]) < 0.3
    probabilities = model.predict_proba(X, groups=GROUPS)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X, groups=GROUPS)).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X, groups=GROUPS), probabilities)


def test_sample_weights_count_in_training() -> None:
    """Labels of weight 0 teach nothing, in whichever group they are."""
    wrong = RNG.random(N) < 0.45
    spoiled = np.where(wrong, np.where(Y == "ill", "well", "ill"), Y)
    weighted = classifier().fit(X, spoiled, groups=GROUPS, sample_weight=np.where(wrong, 0.0, 3.0))
    assert weighted.score(X, Y, groups=GROUPS) > 0.9 > classifier().fit(X, spoiled, groups=GROUPS).score(X, Y, GROUPS)
    with pytest.raises(ValueError, match=r"sample_weight\.shape"):
        classifier().fit(X, Y, sample_weight=[1.0, 2.0])
    with pytest.raises(DataError, match="weight is -1, but must be a finite number that is not negative"):
        classifier().fit(X, Y, sample_weight=np.full(N, -1.0))


def test_without_groups_it_is_ordinary_training() -> None:
    """One client's model is that of local training, to the bit."""
    model = classifier(rounds=5).fit(X, Y)
    assert model.groups_ is None
    local = classifier(method="standalone", rounds=5).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), local.predict_proba(X))
    with pytest.raises(ConfigError, match="groups is given, but fit had no groups"):
        model.predict(X, groups=GROUPS)


def test_a_column_of_groups() -> None:
    model = classifier(group="hospital").fit(FRAME, Y)
    assert model.score(FRAME, Y) > 0.9
    assert model.feature_names_in_.tolist() == ["age", "pulse", "weight", "hospital"]
    assert len(model.models_[0].inputs.fitted.recipe.columns) == 3
    array = np.column_stack([X, np.arange(N) % 3])
    assert classifier(group=3).fit(array, Y).score(array, Y) > 0.9
    with pytest.raises(ConfigError, match="group is 'ward', which is not a column of X"):
        classifier(group="ward").fit(FRAME, Y)
    with pytest.raises(ConfigError, match="groups is given, but group is 'hospital'"):
        model.predict(FRAME, groups=GROUPS)


def test_tables_keep_their_kinds() -> None:
    """Categories and texts are encoded; an array in the same order gives the same."""
    table = FRAME.assign(ward=np.where(X[:, 0] > 0, "a", "b")).drop(columns="age")
    model = classifier(group="hospital").fit(table, Y)
    assert model.score(table, Y) > 0.9
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(model.predict(table.to_numpy(dtype=object)), model.predict(table))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["ward", "weight", "pulse", "hospital"]])


def test_groups_that_fit_did_not_have() -> None:
    model = classifier().fit(X, Y, groups=GROUPS)
    with pytest.raises(ConfigError, match="groups has 'bern', which fit did not have: each sample needs a group"):
        model.predict(X[:2], groups=["va", "bern"])
    with pytest.raises(ConfigError, match="groups is missing"):
        model.predict(X)
    with pytest.raises(ConfigError, match="unknown is 'guess', but must be 'error' or 'mean'"):
        classifier(unknown="guess").fit(X, Y)
    with pytest.raises(ConfigError, match=r"groups has the shape \[2\], but X has 120 samples"):
        model.predict(X, groups=["va", "rome"])
    model.set_params(unknown="mean")
    mean = np.average([model.predict_proba(X, groups=[g] * N) for g in model.groups_], axis=0, weights=model.sizes_)
    np.testing.assert_allclose(model.predict_proba(X), mean)
    np.testing.assert_allclose(model.predict_proba(X, groups=["bern"] * N), mean)


def test_quantities(tmp_path: Path) -> None:
    y = np.where(GROUPS == "rome", -2, 2) * X[:, 0] + 10
    model = hw.PersonalizedRegressor(rounds=30, out=tmp_path / "run").fit(X, y, groups=GROUPS)
    assert model.score(X, y, groups=GROUPS) > 0.8
    assert model.predict(X, groups=GROUPS).shape == (N,)
    assert hw.Run(tmp_path / "run").names == ("oslo", "rome", "va")
    both = hw.PersonalizedRegressor(rounds=30).fit(X, np.stack([y, -y], 1), groups=GROUPS)
    assert both.predict(X, groups=GROUPS).shape == (N, 2)
    assert both.score(X, np.stack([y, -y], 1), groups=GROUPS) > 0.8


@pytest.mark.usefixtures("routing")
def test_cross_validation_routes_groups() -> None:
    scores = cross_val_score(classifier(), X, Y, cv=KFold(3, shuffle=True, random_state=0), params={"groups": GROUPS})
    assert scores.min() > 0.7
    apart = cross_val_score(classifier(unknown="mean"), X, Y, cv=GroupKFold(3), params={"groups": GROUPS})
    assert apart.shape == (3,)
    assert apart.mean() < scores.mean()
    with pytest.raises(ConfigError, match="groups has 'va', which fit did not have"):
        cross_val_score(classifier(), X, Y, cv=GroupKFold(3), params={"groups": GROUPS}, error_score="raise")


@pytest.mark.usefixtures("routing")
def test_pipelines_route_groups() -> None:
    pipeline = make_pipeline(StandardScaler(), classifier()).fit(X, Y, groups=GROUPS)
    assert pipeline.score(X, Y, groups=GROUPS) > 0.9
    assert (pipeline.predict(X, groups=GROUPS) == Y).mean() > 0.9


def test_pipelines_and_searches_with_a_column_of_groups() -> None:
    scale = ColumnTransformer([("scale", StandardScaler(), ["age", "pulse", "weight"])], remainder="passthrough")
    names = scale.set_output(transform="pandas").set_params(verbose_feature_names_out=False)
    pipeline = make_pipeline(names, classifier(group="hospital"))
    assert cross_val_score(pipeline, FRAME, Y, cv=3).min() > 0.7
    search = GridSearchCV(classifier(group="hospital"), {"lr": [0.0001, 0.3]}, cv=2).fit(FRAME, Y)
    assert search.best_params_ == {"lr": 0.3}


def test_permutation_importance_shows_what_groups_are_worth() -> None:
    model = classifier(group="hospital").fit(FRAME, Y)
    means = permutation_importance(model, FRAME, Y, n_repeats=3, random_state=0).importances_mean
    assert means[0] > 0.2 > abs(means[1])
    assert means[3] > 0.2


def test_random_states() -> None:
    few = {"rounds": 2}
    one, two, other = (
        classifier(random_state=s, **few).fit(X, Y).predict_proba(X) for s in (3, np.random.RandomState(3), 4)
    )
    assert not np.array_equal(one, other)
    assert not np.array_equal(two, other)
    assert np.isfinite(classifier(random_state=None, **few).fit(X, Y).predict_proba(X)).all()


def test_parameters_are_those_of_fit(tmp_path: Path) -> None:
    model = classifier(settings={"optimizer": "adam", "class_weight": "balanced"}, out=tmp_path / "run", lr=0.01)
    model.fit(X, Y)
    train = hw.Run(tmp_path / "run").manifest["experiment"]["train"]
    assert (train["optimizer"], train["lr"], train["class_weights"]) == ("adam", 0.01, "balanced")
    assert clone(model).get_params()["settings"] == model.settings
    with pytest.raises(ConfigError, match="momentun"):
        classifier(settings={"train": {"momentun": 1}}).fit(X, Y)


WITHOUT = """
import sys
sys.modules["sklearn"] = None
import headwise as hw
from headwise import *
try:
    hw.PersonalizedClassifier()
except hw.HeadwiseError as error:
    print(error)
"""


def test_scikit_learn_is_optional() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "PersonalizedClassifier needs scikit-learn: pip install 'scikit-learn>=1.6'.\n"
