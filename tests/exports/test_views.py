"""Confusion of classes and maps of features: the numbers of the run itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise.cli import main
from headwise.errors import ConfigError, HeadwiseError
from headwise.exports.run_models import Models
from headwise.exports.views import count_confusion, map_features
from headwise.report.tables import tabulate_confusion


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hw.Run:
    experiment = hw.Experiment(method="fedper", data="digits", clients=4, rounds=2, engine={"workers": 1})
    return hw.run(experiment, tmp_path_factory.mktemp("views") / "run")


def test_confusion_counts_every_test_sample_as_the_run_scored_it(run: hw.Run) -> None:
    counts = np.array(count_confusion(Models(run)))
    test = np.array(run.partition["test"])
    assert counts.sum(1).tolist() == test.sum(0).tolist()
    assert counts.trace() / counts.sum() == pytest.approx(run.score("pre"))


def test_features_are_the_two_widest_directions(run: hw.Run) -> None:
    models = Models(run)
    shown = map_features(models, 1)
    samples = models.plan.data.client(1).test
    assert [label for *_, label in shown.points] == samples.y.tolist()
    places = np.array(shown.points)[:, :2]
    assert np.abs(places.mean(0)).max() < 1e-6
    assert np.corrcoef(places.T)[0, 1] == pytest.approx(0.0, abs=1e-6)
    assert places[:, 0].std() >= places[:, 1].std() > 0
    assert shown.how.startswith("PCA, ")
    assert map_features(models, 1) == shown


def test_what_has_no_classes_is_refused(tmp_path: Path) -> None:
    experiment = hw.Experiment(data="diabetes", clients=3, partition="iid", rounds=1, engine={"workers": 1})
    with pytest.raises(ConfigError, match="task is 'regression', but confusion and features need one class"):
        count_confusion(Models(hw.run(experiment, tmp_path / "run")))


@pytest.mark.parametrize(("client", "projection"), [("9", "pca"), ("1", "umap")])
def test_an_unknown_client_or_projection_is_refused(run: hw.Run, client: str, projection: str) -> None:
    with pytest.raises(HeadwiseError, match=r"no client '9'|projection is 'umap', but must be pca or tsne"):
        map_features(Models(run), run.number_of(client), projection)


def test_many_classes_are_listed_by_their_confusions() -> None:
    counts = [[0] * 30 for _ in range(30)]
    counts[3][4] = 7
    counts[3][3] = 3
    head, rows = tabulate_confusion(counts, [f"c{k}" for k in range(30)])
    assert head == ["class", "taken for", "samples", "of the class"]
    assert rows == [["c3", "c4", "7", "70.0 %"]]


def test_the_page_has_what_was_asked_for(run: hw.Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as end:
        main(["report", str(run.path), "--confusion", "--features", "1", "-o", str(page)])
    assert end.value.code == 0
    text = page.read_text()
    assert '<section id="confusion"' in text
    assert '<circle cx="' in text and "features of client 1" in text
    with pytest.raises(SystemExit):
        main(["report", str(run.path), "-o", str(page)])
    assert '<section id="confusion"' not in page.read_text()
    assert '<section id="features"' not in page.read_text()
