"""What judges a run: the metric that its experiment names, with its direction and its floor; and round 0."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.app.launch import data_folder
from headwise.app.prepare import prepare
from headwise.cli import main
from headwise.disk.files import seal, write_json
from headwise.engine.driver import _update_patience
from headwise.engine.events import Progress
from headwise.errors import ConfigError, RunError
from headwise.log.metrics import main_metric
from headwise.log.schema import Round
from headwise.records import Nothing
from headwise.report.data import setting_data
from headwise.report.results import collect
from headwise.report.tables import tabulate_results
from headwise.report.words import describe_clients, describe_results
from headwise.runs.query import summarize
from same_runs import rows
from small_runs import experiment, stop_after

AUC = {"metric": "auc"}


def lines(run: hw.Run) -> list[Any]:
    """All that is in its lines, but for times, and without round 0."""
    return [*rows(run), *(line for line in run.clients if line["round"])]


def curve(*values: float | None, name: str) -> list[Round]:
    usual: Any = {"bytes_up": 0, "bytes_down": 0, "bytes_evaluation": 0, "seconds": {"round": 0.0, "workers": {}}}
    return [{**usual, "round": t, "pre": {name: v}} for t, v in enumerate(values, 1)]


def test_the_best_round_follows_the_metric_and_its_direction() -> None:
    up, down = main_metric("auc", None), main_metric("log_loss", None)
    assert summarize(curve(0.5, 0.9, 0.9, 0.7, name="auc"), "pre", up)["best_round"] == 2
    found = summarize(curve(0.5, 0.2, 0.2, 0.7, name="log_loss"), "pre", down)
    assert (found["best_round"], found["best"], found["last"]) == (2, 0.2, 0.7)
    assert summarize(curve(None, 0.4, None, name="log_loss"), "pre", down)["last"] == 0.4, "infinite is not measured"
    assert summarize(curve(0.4, name="accuracy"), "pre", up) == {}


def test_the_round_chosen_on_validation_follows_the_direction() -> None:
    found = curve(0.5, 0.6, 0.7, name="log_loss")
    for row, value in zip(found, (3.0, 1.0, 2.0), strict=True):
        row["pre"]["val_log_loss"] = value
    summary = summarize(found, "pre", main_metric("log_loss", None))
    assert (summary["selected"], summary["selected_round"]) == (0.6, 2)


@pytest.mark.parametrize(("name", "better", "worse"), [("auc", 0.8, 0.6), ("log_loss", 0.6, 0.8)])
def test_patience_follows_the_direction(name: str, better: float, worse: float) -> None:
    main, now = main_metric(name, None), Progress(1, Nothing(), {}, 0.7, 0)
    assert _update_patience(now, curve(better, name=name)[0], main) == (better, 0)
    assert _update_patience(now, curve(worse, name=name)[0], main) == (0.7, 1)
    assert _update_patience(now, curve(None, name=name)[0], main) == (0.7, 1)
    assert _update_patience(Progress(1, Nothing(), {}), curve(worse, name=name)[0], main) == (worse, 0)


def test_an_error_that_cannot_fall_ends_a_run_with_patience(tmp_path: Path) -> None:
    still = experiment(9, train={"lr": 1e-12}, stop={"patience": 2}, evaluate={"metric": "log_loss"})
    run = hw.run(still, tmp_path / "run")
    assert run.ended == "patience"
    assert len(run.rounds) < 9


def test_round_0_is_what_clients_have_before_training(tmp_path: Path) -> None:
    run = hw.run(experiment(2, evaluate={"moments": ["pre", "post", "global"]}), tmp_path / "run")
    start = run.start
    assert start is not None
    untrained = {**start["pre"], "untrained": 5}
    assert start["stale"] == untrained
    assert "post" not in start
    assert start["bytes_up"] == start["bytes_down"] == 0
    assert [row["round"] for row in run.rounds] == [1, 2]
    assert [line["client"] for line in run.clients if not line["round"]] == list(range(5))
    summary = run.summary()
    assert summary["rounds"] == 2
    assert summary["accuracy"]["pre"]["best_round"] in (1, 2), "round 0 is no result of a method"
    [setting] = collect([run.path])
    [line] = setting_data(setting)["lines"]
    assert line["curves"]["pre"]["round"] == [0, 1, 2]
    assert line["curves"]["pre"]["mb"][0] == 0


@pytest.mark.parametrize("method", ["fedper", "fedgh", "fedproto", "scaffold"])
def test_measuring_at_the_start_changes_no_number_of_the_run(method: str, tmp_path: Path) -> None:
    with_it = hw.run(experiment(3, method=method), tmp_path / "with")
    without = hw.run(experiment(3, method=method, evaluate={"start": False}), tmp_path / "without")
    assert with_it.start is not None
    assert without.start is None
    assert lines(with_it) == lines(without)
    same = [{k: v for k, v in run.summary().items() if k not in ("run", "seconds")} for run in (with_it, without)]
    assert same[0] == same[1]


def test_a_run_that_was_killed_measures_its_start_once(tmp_path: Path) -> None:
    whole = hw.run(experiment(3), tmp_path / "whole")
    run = hw.resume(stop_after(tmp_path / "run", 1, of=3).path)
    assert [json.loads(line)["round"] for line in (run.path / "rounds.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert lines(run) == lines(whole)
    assert run.start is not None
    assert whole.start is not None
    assert run.start["pre"] == whole.start["pre"]


def test_one_that_was_killed_before_round_1_begins_again(tmp_path: Path) -> None:
    whole = hw.run(experiment(2), tmp_path / "run")
    first = (whole.path / "rounds.jsonl").read_text().splitlines()[0]
    for path in [*(whole.path / "checkpoint").iterdir(), whole.path / "result.json", whole.path / "clients.jsonl"]:
        path.unlink()
    (whole.path / "rounds.jsonl").write_text(first + "\n")
    before = lines(hw.run(experiment(2), tmp_path / "again"))
    assert lines(hw.resume(whole.path)) == before


def test_a_run_is_judged_by_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = "synthetic:240:2:6:sites=2"
    run = hw.run(experiment(3, data=data, evaluate=AUC), tmp_path / "run")
    usual = hw.run(experiment(3, data=data), tmp_path / "usual")
    assert run.metric.name == "auc"
    summary, values = run.summary(), [row["pre"]["auc"] for row in run.rounds]
    assert summary["metric"] == "auc"
    assert summary["auc"]["pre"]["last"] == values[-1] == run.score("pre")
    assert summary["auc"]["pre"]["best"] == max(values)
    assert run.accuracy("pre") == usual.accuracy("pre"), "what is measured besides changes nothing"
    assert [row["pre"]["loss"] for row in run.rounds] == [row["pre"]["loss"] for row in usual.rounds]
    assert "auc" not in usual.rounds[-1]["pre"], "nobody asked for it"
    settings = {s.metric.name: s for s in collect([tmp_path])}
    assert settings.keys() == {"auc", "accuracy"}, "runs that are judged differently are not compared"
    head, cells = tabulate_results(settings["auc"].lines, settings["auc"].floor)
    assert head[1] == "AUC (pre)"
    assert cells[0][1] == f"{values[-1]:.3f}"
    assert cells[-1][:2] == ["dummy floor", "0.500"]
    assert f"their AUC is {settings['auc'].ranking[0].score:.3f}" in describe_results(settings["auc"])[0]
    with pytest.raises(SystemExit):
        main(["resume", str(run.path)])
    said = capsys.readouterr().out
    assert "metric AUC" in said
    assert "floor  0.5000 (each client's best constant prediction)" in said


def test_a_client_with_one_class_has_no_auc(tmp_path: Path) -> None:
    run = hw.run(experiment(2, partition="pathological:1", evaluate=AUC), tmp_path / "alone")
    assert all("auc" not in row["pre"] for row in run.rounds)
    assert run.summary()["auc"] == {}
    [setting] = collect([run.path])
    assert describe_results(setting)[0].startswith("Nothing was measured")
    assert describe_clients(setting) == []
    assert tabulate_results(setting.lines, setting.floor)[1][0][1] == ""
    some = hw.run(experiment(2, data="synthetic:60:4:6:sites=2", evaluate=AUC), tmp_path / "some")
    counts = [sum(n > 0 for n in row) for row in some.partition["test"]]
    able, tested = sum(n > 1 for n in counts), sum(n > 0 for n in counts)
    assert 0 < able < tested, "or this tests too little"
    for row in some.rounds:
        assert row["pre"]["auc_clients"] == able
        assert row["pre"]["clients"] == tested
    assert [floor is not None for floor in some.floors] == [n > 1 for n in counts]
    [setting] = collect([some.path])
    head, cells = tabulate_results(setting.lines, setting.floor)
    assert cells[0][head.index("clients measured")] == str(able)
    assert f"{able} were measured" in " ".join(describe_results(setting))


def test_floors_are_those_of_models_without_inputs(tmp_path: Path) -> None:
    run = hw.run(experiment(1, evaluate={"metric": "log_loss"}), tmp_path / "run")
    expected = []
    for train, test in zip(run.partition["train"], run.partition["test"], strict=True):
        likely = [(n + 1) / (sum(train) + len(train)) for n in train]
        lost = sum(-n * math.log(p) for n, p in zip(test, likely, strict=True))
        expected.append(lost / sum(test) if sum(test) else None)
    assert run.floors == pytest.approx(expected)
    sizes = [sum(row) for row in run.partition["test"]]
    whole = sum((f or 0) * n for f, n in zip(expected, sizes, strict=True)) / sum(sizes)
    assert run.floor == pytest.approx(whole)
    assert "floors" not in hw.run(experiment(1), tmp_path / "usual").partition


def test_the_floor_of_a_regression_is_each_clients_mean(tmp_path: Path) -> None:
    asked = experiment(2, data="synthetic:160:2:6:sites=2:task=regression", partition="natural", clients=2)
    run = hw.run(asked, tmp_path / "run")
    assert run.metric.name == "rmse"
    data = prepare(asked, data_folder(None)).plan.data
    pairs = [(data.client(c).train.y.numpy(), data.client(c).test.y.numpy()) for c in range(2)]
    expected = [float(np.sqrt(((test - train.mean(0)) ** 2).mean(0)).mean()) for train, test in pairs]
    assert run.floors == pytest.approx(expected, rel=1e-5)
    total = sum(f**2 * len(test) for f, (_, test) in zip(expected, pairs, strict=True))
    assert run.floor == pytest.approx(math.sqrt(total / sum(len(test) for _, test in pairs)), rel=1e-5)
    assert run.start is not None
    assert {"mae", "rmse", "r2", "loss", "client_std"} <= run.start["pre"].keys()
    [setting] = collect([run.path])
    assert tabulate_results(setting.lines, setting.floor)[0][1] == "RMSE (less is better) (pre)"
    assert "where less is better" in describe_results(setting)[0]


def test_metrics_that_do_not_apply_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for evaluate, said in (
        ({"metric": "mae"}, "evaluate.metric is 'mae', but the task is classification"),
        ({"metrics": ["f1", "iuo"]}, r"evaluate.metrics\[1\] is 'iuo', but the task is classification"),
    ):
        with pytest.raises(ConfigError, match=said):
            hw.run(experiment(1, evaluate=evaluate), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_metric_is_not_installed_here_says_so(tmp_path: Path) -> None:
    run = hw.run(experiment(1), tmp_path / "run")
    path = run.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["experiment"]["evaluate"]["metric"] = "of_a_stranger"
    write_json(path, seal(manifest))
    with pytest.raises(RunError, match=r"can't be judged here: evaluate\.metric is 'of_a_stranger'"):
        hw.Run(run.path).summary()
