"""A search on validation samples: the same answer however often it is killed, and nothing from test samples."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_fit import frame

import headwise as hw
from headwise.app import tune as tuning
from headwise.app.registry import resolve_all
from headwise.app.tune import Dimension, find_space, parse_budget, parse_dimension, parse_space, tune, with_validation
from headwise.cli import cli
from headwise.engine.events import RoundEnded
from headwise.errors import ConfigError, NoScoreError, RunError
from headwise.settings.experiment import read_toml


def small(**changes: Any) -> hw.Experiment:
    values: dict[str, Any] = {"method": "fedprox", "data": "digits", "clients": 4, "fraction": 0.2, "rounds": 4}
    return hw.Experiment(**values | {"engine": {"workers": 1}} | changes)


def essence(result: tuning.Tuning) -> str:
    return json.dumps({k: v for k, v in result.to_plain().items() if k != "out"})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuning.Tuning:
    return tune(small(), trials=6, out=tmp_path_factory.mktemp("tune") / "whole")


def test_the_first_trial_has_the_settings_of_the_experiment(uninterrupted: tuning.Tuning) -> None:
    assert len(uninterrupted.trials) == 6
    assert uninterrupted.start["settings"] == {"train.lr": 0.05, "method.mu": 0.01}
    assert uninterrupted.best["score"] >= uninterrupted.start["score"]
    assert uninterrupted.words()[0].startswith("Best on validation samples: ")


def test_trials_wait_for_no_disk_but_runs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.readlink(f"/proc/self/fd/{number}")))
    tune(small(rounds=1), trials=1, out=tmp_path / "tune")
    hw.run(small(rounds=1), tmp_path / "run")
    folders = [Path(name).relative_to(tmp_path).parts[:2] for name in flushed if name.startswith(str(tmp_path))]
    assert ("tune", "trial-000") not in folders
    assert {folder[0] for folder in folders} == {"tune", "run"}


def test_a_search_that_is_killed_ends_the_same(uninterrupted: tuning.Tuning, tmp_path: Path) -> None:
    """In the middle of every run, and between asking for settings and training with them."""
    rounds = 0

    def kill(event: object) -> None:
        nonlocal rounds
        rounds += isinstance(event, RoundEnded)
        if isinstance(event, RoundEnded) and rounds % 3 == 2:
            raise KeyboardInterrupt

    for _ in range(40):
        try:
            result = tune(small(), trials=6, out=tmp_path / "killed", watch=lambda title: nullcontext([kill]))
            break
        except (KeyboardInterrupt, RunError):
            continue
    assert rounds > 6
    assert essence(result) == essence(uninterrupted)


def test_the_best_settings_are_an_experiment_of_their_own(uninterrupted: tuning.Tuning) -> None:
    values = read_toml(uninterrupted.out / "best.toml")
    again = hw.Experiment(**values)
    again = dataclasses.replace(again, engine=uninterrupted.experiment.engine)
    assert resolve_all(again) == resolve_all(uninterrupted.experiment)
    assert again.train.lr == uninterrupted.best["settings"]["train.lr"]


def test_test_samples_decide_nothing(tmp_path: Path) -> None:
    """Wrong labels for all test samples change no settings and no scores."""
    results = []
    for k, flipped in enumerate((False, True)):
        clients = {}
        for name in ("a", "b", "c"):
            x = np.random.default_rng(len(name) + ord(name)).normal(size=(60, 5)).astype(np.float32)
            y = (x[:, 0] + 0.3 * x[:, 1] > 0).astype(int)
            wrong = 1 - y if flipped else y
            clients[name] = ((x[:40], y[:40]), (x[40:], wrong[40:]))
        run = hw.fit(clients, rounds=1, out=tmp_path / f"fit-{k}", workers=1)
        base = hw.Experiment(**{**run.manifest["experiment"], "rounds": 3})
        results.append(tune(base, trials=4, out=tmp_path / f"tune-{k}"))
    plain = [[(t["settings"], t["score"], t["state"]) for t in r.trials] for r in results]
    assert plain[0] == plain[1]


def test_trials_are_stopped_early_however_seldom_the_experiment_is_measured(
    uninterrupted: tuning.Tuning, tmp_path: Path
) -> None:
    seldom = tune(small(evaluate={"every": 4}), trials=6, out=tmp_path / "seldom")
    assert seldom.trials == uninterrupted.trials
    assert "pruned" in {t["state"] for t in seldom.trials}
    assert read_toml(seldom.out / "best.toml")["evaluate"]["every"] == 4
    long = tune(small(data="synthetic", rounds=24, evaluate={"every": 24}), trials=1, out=tmp_path / "long")
    measured = [row["round"] for row in hw.Run(long.out / "trial-000").rounds if "bytes_evaluation" in row]
    assert measured == [3, 6, 9, 12, 15, 18, 21, 24]


def test_a_trial_is_as_patient_as_its_experiment(tmp_path: Path) -> None:
    """Patience counts evaluations, so trials must be measured as often."""
    base = small(data="synthetic", rounds=16, stop={"patience": 2})
    trial = hw.Run(tune(base, trials=1, out=tmp_path / "tune").out / "trial-000")
    alone = hw.run(with_validation(base), tmp_path / "alone")
    assert len(trial.rounds) == len(alone.rounds) < 16


def test_data_and_settings_are_taken_as_by_fit(tmp_path: Path) -> None:
    table = frame(hospital=["va", "rome"] * 10)
    settings: dict[str, Any] = {"client": "hospital", "target": "ill", "method": "fedprox", "rounds": 1, "workers": 1}
    assert len(tune(table, trials=1, out=tmp_path / "own", **settings).trials) == 1
    result = tune(table, trials=2, out=tmp_path / "own", **settings)
    assert [*result.start["settings"]] == ["train.lr", "method.mu"]
    assert len(result.trials) == 2


def test_the_name_of_a_public_data_set_is_no_base() -> None:
    sentence = r"^base is 'digits', a public data set: write hw\.tune\(hw\.Experiment\(data='digits'\)\)\.$"
    with pytest.raises(ConfigError, match=sentence):
        tune("digits")


def test_a_search_is_one_line_in_python(uninterrupted: tuning.Tuning) -> None:
    line = repr(uninterrupted)
    assert line.startswith(f"<Tuning {uninterrupted.out}: 6 trials, best validation accuracy ")
    assert " with train.lr = " in line and line.endswith(">")
    assert len(line) < len(str(uninterrupted.out)) + 120


def test_scores_that_are_all_equal_give_no_importances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "validation_score", lambda row, metric: 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tune(small(rounds=1), trials=6, out=tmp_path / "equal")
    assert len(result.trials) == 6
    assert result.importances == {}


def test_a_fraction_is_not_among_whole_numbers(tmp_path: Path) -> None:
    epochs = parse_dimension("train.epochs=int:1..4")
    assert epochs.contains(2) and epochs.contains(2.0) and not epochs.contains(1.5) and not epochs.contains(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base = small(rounds=1, train={"epochs": 1.5})
        result = tune(base, trials=1, space=["train.epochs=int:1..4"], out=tmp_path / "whole")
    assert result.start["settings"]["train.lr"] == 0.05


def test_divergence_is_a_result(tmp_path: Path) -> None:
    result = tune(small(method="fedavg"), trials=3, space=["train.lr=log:1e-2..9e5"], out=tmp_path / "wild")
    assert {t["state"] for t in result.trials} <= {"complete", "pruned", "diverged"}
    assert result.best["state"] == "complete"


def test_a_trial_that_diverged_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([None, 0.3, None])  # of the last round of each trial, None where it diverged
    monkeypatch.setattr(tuning._Judge, "_report", lambda judge, row: None)
    monkeypatch.setattr(tuning, "validation_score", lambda row, metric: next(scores))
    result = tune(small(method="fedavg", rounds=1), trials=3, out=tmp_path / "diverged")
    assert [t["state"] for t in result.trials] == ["diverged", "complete", "diverged"]
    assert [t["score"] for t in result.trials] == [None, 0.3, None]
    assert result.best["number"] == 1


def test_a_budget_that_is_too_short_says_so_and_can_be_continued(tmp_path: Path) -> None:
    with pytest.raises(NoScoreError, match=r"no trial in .* has ended with a score: give it a larger budget"):
        tune(small(), budget=0.001, out=tmp_path / "short")
    assert len(tune(small(), trials=1, out=tmp_path / "short").trials) == 1


def test_another_search_needs_another_folder(uninterrupted: tuning.Tuning) -> None:
    with pytest.raises(ConfigError, match=r"holds a search that differs in space"):
        tune(small(), trials=6, space=["train.lr=log:1e-3..2"], out=uninterrupted.out)


def test_every_client_has_validation_samples_and_is_measured() -> None:
    base = with_validation(small(evaluate={"clients": 0.5}))
    assert (base.evaluate.validation, base.evaluate.clients) == (0.2, 1.0)
    assert with_validation(small(evaluate={"validation": 0.4})).evaluate.validation == 0.4


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("train.lr=log:1e-3..1", Dimension("train.lr", "log", 1e-3, 1.0)),
        ("method.mu=uniform:0..0.5", Dimension("method.mu", "uniform", 0.0, 0.5)),
        ("train.epochs=int:1..10", Dimension("train.epochs", "int", 1.0, 10.0)),
        ("train.optimizer=sgd,adam", Dimension("train.optimizer", "choice", choices=("sgd", "adam"))),
    ],
)
def test_a_dimension_is_parsed_and_written(text: str, dimension: Dimension) -> None:
    assert parse_dimension(text) == dimension
    assert parse_dimension(str(dimension)) == dimension


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("train.lr", "must look like"),
        ("train.lr=", "must look like"),
        ("=log:1..2", "must look like"),
        ("train.lr=log:a..b", "must look like"),
        ("train.lr=log:1", "must look like"),
        ("train.epochs=int:1..2.5", "must look like"),
        ("train.lr=0.1", "leaves nothing to search"),
        ("train.lr=log:0..1", r"the low end of a log range must be above 0\.$"),
        ("train.lr=log:1..0.1", r"the low end of a range must be below its high end\.$"),
        ("train.lr=uniform:1..1", r"the low end of a range must be below its high end\.$"),
    ],
)
def test_a_broken_dimension_gets_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^space is '{text}', .*{why}"):
        parse_dimension(text)


@pytest.mark.parametrize("name", ["train.epochs", "method.mu", "model", "server_model", "buffers"])
def test_settings_that_change_the_answer_can_be_searched(name: str) -> None:
    assert parse_dimension(f"{name}=1,2").name == name


@pytest.mark.parametrize(
    "name", ["partition.alpha", "evaluate.validation", "seed", "data_seed", "data", "clients", "split", "fraction",
             "rounds", "sampling.ratio", "faults.inject", "drift.round", "stop.patience", "engine.kernels",
             "privacy.noise", "trian.lr", "trainer", "method"],
)  # fmt: skip
def test_settings_that_change_the_question_can_not_be_searched(name: str) -> None:
    sentence = r"may only change train\.\*, method\.\*, model, server_model and buffers"
    with pytest.raises(ConfigError, match=rf"^space is '{name}=1,2', but a search {sentence}"):
        parse_dimension(f"{name}=1,2")


def test_a_space_is_a_text_a_list_or_a_mapping() -> None:
    lr = Dimension("train.lr", "log", 1e-3, 1.0)
    optimizer = Dimension("train.optimizer", "choice", choices=("sgd", "adam"))
    assert parse_space("train.lr=log:1e-3..1") == [lr]
    assert parse_space(("train.lr=log:1e-3..1", "train.optimizer=sgd,adam")) == [lr, optimizer]
    assert parse_space({"train.lr": "log:1e-3..1", "train.optimizer": ["sgd", "adam"]}) == [lr, optimizer]
    assert parse_space({"train.drop_last": [True, False]})[0].choices == (True, False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trials": "two"}, "trials is 'two', but must be a whole number."),
        ({"trials": 0}, "trials is 0, but must be from 1 to 1,000,000,000."),
        ({"space": 3}, "space is 3, but must be a list."),
        ({"space": [3]}, "space[0] is 3, but must be a string."),
        ({"space": {"train.lr": 0.1}}, "space is 'train.lr=0.1', which leaves nothing to search: give two values or a"),
        ({"trails": 3}, "trails is not a setting: did you mean 'trials'?"),
        ({"rounds": 3}, "rounds is given beside an Experiment: set it there."),
        ({"clients": 3}, "clients is given beside an Experiment: set it there."),
    ],
)
def test_a_wrong_argument_gets_a_sentence(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        tune(small(), out=tmp_path / "none", **options)
    assert str(error.value).startswith(sentence)
    assert not (tmp_path / "none").exists()


def test_the_help_says_that_a_space_adds_to_the_default_search() -> None:
    printed = " ".join(CliRunner().invoke(cli, ["tune", "--help"]).output.split())
    assert "search this too, or a default in another range" in printed


def test_a_range_without_a_scale_is_told_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"write method\.mu=uniform:0\.\.1, log:0\.\.1 or int:0\.\.1\."):
        parse_dimension("method.mu=0..1")


@pytest.mark.parametrize(
    ("space", "value", "at_edge"),
    [
        ("train.lr=log:0.04..0.06", 0.05, False),
        ("train.lr=log:0.04..0.06", 0.0405, True),
        ("train.lr=log:0.001..1", 0.0012, True),
        ("train.lr=log:0.001..1", 0.9, True),
        ("train.lr=log:0.001..1", 0.5, False),
        ("train.lr=uniform:2..3", 2.04, True),
        ("train.lr=uniform:2..3", 2.06, False),
    ],
)
def test_the_edge_of_a_range_is_a_share_of_it_on_its_own_scale(
    uninterrupted: tuning.Tuning, space: str, value: float, at_edge: bool
) -> None:
    trial = {**uninterrupted.best, "settings": {"train.lr": value}}
    result = dataclasses.replace(uninterrupted, space=[parse_dimension(space)], trials=[trial])
    assert any("is at the edge of its range" in sentence for sentence in result.words()) == at_edge


def test_only_the_best_trials_are_listed(
    uninterrupted: tuning.Tuning, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = [{**uninterrupted.best, "number": k, "score": k / 100} for k in range(12)]
    result = dataclasses.replace(uninterrupted, trials=trials, importances={}, out=tmp_path)
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: result)
    printed = CliRunner().invoke(cli, ["tune", "--quiet"]).output
    assert "12 trials, the best 10" in printed
    assert "11.0 %" in printed and "2.0 %" in printed and " 1.0 %" not in printed
    assert "2 more are in" in printed and "tuning.md" in printed


def test_importances_of_few_trials_are_no_percentages(uninterrupted: tuning.Tuning) -> None:
    words = dataclasses.replace(uninterrupted, importances={"train.lr": 0.8, "method.mu": 0.2}).words()
    assert "train.lr seems to matter most: Optuna's estimate, from 6 trials." in words
    assert not any("explains" in sentence for sentence in words)


def test_unknown_settings_are_refused_before_the_first_trial(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.nu is not a setting"):
        tune(small(), trials=1, space=["method.nu=log:1..2"], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_method_searches_its_own_numbers_only() -> None:
    names = [d.name for d in find_space(small(method="fedrep"))]
    assert names == ["train.lr", "method.head_epochs"]
    assert [d.name for d in find_space(small(method="standalone"))] == ["train.lr"]


@pytest.mark.parametrize("budget", ["", "10", "m", "-1s", "1d", "xs", 0, True, None, "1e99h", "9999999h", "30m1h", "s"])
def test_a_broken_budget_gets_a_sentence(budget: Any) -> None:
    with pytest.raises(ConfigError, match=r"^budget is .* but must be a time such as 90s, 30m or 1h30m"):
        parse_budget(budget)


def test_a_budget_is_a_time() -> None:
    assert [parse_budget(b) for b in ("90s", "1.5m", "2h", "1h30m", 7)] == [90.0, 90.0, 7200.0, 5400.0, 7.0]
