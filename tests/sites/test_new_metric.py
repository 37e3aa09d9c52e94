"""Another package adds a metric as one entry: it appears in every file, message and table, and is never required."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import LocalTransport, experiment, run_deployment, write_site

import headwise as hw
from headwise.cli import main
from headwise.engine.client.scoring import summarize_clients
from headwise.errors import ConfigError
from headwise.log.metrics import Metric, mean, metrics
from headwise.report.page import render
from headwise.report.results import collect
from headwise.report.tables import tabulate_results
from headwise.sites.transport.envelope import Lost, SiteMessage
from headwise.trackers import flatten_row

PACKAGE = """
from headwise.log.metrics import Metric, weighted


def top2(said):
    return (said.scores.topk(2).indices == said.labels[:, None]).any(1).double().mean().item()


TOP2 = Metric("top2", "top-2 accuracy", top2, weighted)
MEAN = Metric("accuracy", "mine", top2, weighted)
TYPO = Metric("worst_top2", "worst", "top3", weighted)
NONE = 3
"""


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """Each test starts and ends with our own metrics only."""
    metrics.cache_clear()
    yield
    metrics.cache_clear()
    sys.modules.pop("of_a_stranger", None)


def install(folder: Path, patch: pytest.MonkeyPatch, value: str = "TOP2") -> None:
    """A package with an entry point, as pip would install it."""
    info = folder / "stranger-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "of_a_stranger.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[headwise.metrics]\nmine = of_a_stranger:{value}\n")
    patch.syspath_prepend(str(folder))
    metrics.cache_clear()


def test_a_new_metric_is_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "package", monkeypatch)
    run = hw.run(experiment(rounds=2), tmp_path / "run")
    row, line = run.rounds[-1], run.clients[-1]
    tests = {c["client"]: c["pre"]["test"] for c in run.clients if c["round"] == 2 and c["pre"]["test"]}
    assert row["pre"]["top2"] == pytest.approx(summarize_clients(tests)["top2"])
    assert row["pre"]["accuracy"] < row["pre"]["top2"] <= 1
    assert line["pre"]["test"]["top2"] <= 1
    assert flatten_row(row)["pre/top2"] == row["pre"]["top2"]
    assert json.loads((run.path / "result.json").read_text())["accuracy"]["pre"]["top2"] == row["pre"]["top2"]
    [setting] = collect([run.path])
    head, cells = tabulate_results(setting.lines, setting.floor)
    assert cells[0][head.index("top-2 accuracy")] == f"{row['pre']['top2'] * 100:.1f} %"
    assert "top-2 accuracy" in render([setting])
    with pytest.raises(SystemExit):  # nothing left to do but print the summary
        main(["resume", str(run.path)])
    assert f"top-2 accuracy {row['pre']['top2']:.4f}" in capsys.readouterr().out


def test_a_new_metric_comes_from_sites_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "package", monkeypatch)
    transport = LocalTransport({7: write_site(tmp_path / "a", [0, 1]), 8: write_site(tmp_path / "b", [2, 3, 4])})
    there = run_deployment(transport, experiment(rounds=2), tmp_path / "there")
    here = hw.run(experiment(rounds=2), tmp_path / "here")
    assert [row["pre"] for row in there.rounds] == [row["pre"] for row in here.rounds]
    assert "top2" in there.rounds[-1]["pre"]
    assert there.start is not None
    assert here.start is not None
    assert there.start["pre"] == here.start["pre"], "before round 1, too"


def test_a_site_may_measure_other_things_than_the_server(tmp_path: Path) -> None:
    """The server ignores metrics it does not know; metrics a site does not know count as not measured."""
    transport = LocalTransport({7: write_site(tmp_path / "a", [0, 1]), 8: write_site(tmp_path / "b", [2, 3, 4])})

    def other(node: int, kind: str, message: SiteMessage) -> SiteMessage | Lost | None:
        said = json.loads(message.text)
        for answer in said.get("answers", ()) if node == 7 else ():
            for part in filter(None, (answer["test"], answer["val"])):
                del part["f1"]
                part["of_next_year"] = 0.5
        return message._replace(text=json.dumps(said))

    transport.meddle = other
    run = run_deployment(transport, experiment(rounds=2), tmp_path / "run")
    known = {line["client"]: line["pre"]["test"] for line in run.clients if line["round"] == 2}
    assert {c: "f1" in test for c, test in known.items() if test} == {0: False, 1: False, 2: True, 3: True, 4: True}
    assert not any("of_next_year" in test for test in known.values() if test)
    assert run.rounds[-1]["pre"]["f1"] == pytest.approx(sum(known[c]["f1"] for c in (2, 3, 4)) / 3)


def test_a_run_that_began_without_a_metric_goes_on_with_it_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = experiment(rounds=3, stop={"budget": 1e-9})  # a session does one round
    whole = hw.run(experiment(rounds=3), tmp_path / "whole")
    run = hw.run(asked, tmp_path / "run")
    install(tmp_path / "package", monkeypatch)
    run = hw.resume(run.path)
    assert ["top2" in row["pre"] for row in run.rounds] == [False, True]
    assert 0 < run.rounds[1]["stale"]["top2"] <= 1, "over the clients that trained since"
    monkeypatch.undo()
    metrics.cache_clear()
    run = hw.resume(run.path)
    assert ["top2" in row["pre"] for row in run.rounds] == [False, True, False]
    ours = [{k: v for k, v in row["stale"].items() if not k.startswith("top2")} for row in run.rounds]
    assert ours == [row["stale"] for row in whole.rounds]
    [setting] = collect([run.path])
    assert "top-2 accuracy" not in tabulate_results(setting.lines, None)[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("MEAN", "mine = 'of_a_stranger:MEAN' is a second metric 'accuracy'"),
        ("TYPO", "metric.of is 'top3' in 'of_a_stranger:TYPO', but must be one of accuracy, "),
        ("NONE", "mine = 'of_a_stranger:NONE' of headwise.metrics must be a Metric"),
        ("LOST", "mine = 'of_a_stranger:LOST' can't be loaded"),
    ],
)
def test_an_entry_that_is_no_metric_is_one_sentence(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "package", monkeypatch, value)
    with pytest.raises(ConfigError, match=said):
        metrics()


def test_a_heading_says_where_less_is_better() -> None:
    assert Metric("errors", "errors", "accuracy", mean).heading == "errors"
    assert Metric("errors", "errors", "accuracy", mean, "down").heading == "errors (less is better)"


def test_a_name_that_would_overwrite_a_figure_is_refused() -> None:
    for name in ("best", "clients", "val_accuracy", "top 2", ""):
        with pytest.raises(ConfigError, match=r"metric\.name is"):
            Metric(name, "mine", "accuracy", mean)
