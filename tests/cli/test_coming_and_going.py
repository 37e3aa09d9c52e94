"""New clients, going on and forgetting, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from saying import Headwise, assert_refused, small

import headwise as hw

NEW = ("--set", "evaluate.new_clients=0.3")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    asked = {"data": "synthetic:120:3:5:sites=2", "partition": "iid", "model": "mlp:4", "clients": 3, "rounds": 2}
    return hw.run(hw.Experiment(**asked), folder).path  # pyright: ignore[reportArgumentType]


def test_newcomers_are_shown_and_reported(headwise: Headwise, tmp_path: Path) -> None:
    said = headwise(*small("run", *NEW, out=str(tmp_path / "run")), "--quiet")
    assert "new    1 client, by epochs: joined 0." in said.out
    told = json.loads((tmp_path / "run" / "result.json").read_text())["new_clients"]
    assert [*told["joined"]] == ["0", "1", "5"]
    headwise("report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "Clients that never trained" in page
    assert f"{100 * told['joined']['5']:.2f}" in page


@pytest.mark.parametrize("share", ["evaluate.new_clients=0.3", "evaluate.clients=0.5"])
@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_floor_is_that_of_the_clients_whose_scores_are_reported(
    headwise: Headwise, tmp_path: Path, share: str, metric: str
) -> None:
    options = ("--set", share, "--set", f"evaluate.metric={metric}")
    changes = {"partition": "dirichlet:0.3", "clients": "6", "rounds": "1", "out": str(tmp_path / "run")}
    headwise(*small("run", *options, **changes), "--quiet")
    run = hw.Run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    sizes = {line["client"]: line["pre"]["test"]["n"] for line in lines if "test" in line.get("pre", {})}
    assert 0 < len(sizes) < 6
    floors = {c: floor for c in sizes if (floor := run.floors[c]) is not None}
    mean = sum(sizes[c] * floors[c] for c in floors) / sum(sizes[c] for c in floors)
    assert run.floor == pytest.approx(mean)
    if metric == "accuracy":
        by_client = run.manifest["partition"]["floor"]["mean"]
        assert by_client == pytest.approx(sum(floors.values()) / len(floors))


def test_a_damaged_file_of_newcomers_gets_a_sentence(headwise: Headwise, tmp_path: Path) -> None:
    headwise(*small("run", *NEW, out=str(tmp_path / "run")), "--quiet")
    (tmp_path / "run" / "new_clients.json").write_text('{"clients": [1], "rows": [{"model": 1}]}')
    assert_refused(headwise("resume", str(tmp_path / "run")), "new_clients.json is damaged")


def test_a_run_goes_on(headwise: Headwise, done: Path, tmp_path: Path) -> None:
    said = headwise("run", "--from", str(done), "--rounds", "1", "--out", str(tmp_path / "more"), "--json", "--quiet")
    assert json.loads(said.out)["rounds"] == 1
    assert hw.Run(tmp_path / "more").manifest["experiment"]["origin"]["rounds"] == 2


def test_a_client_is_forgotten(headwise: Headwise, done: Path, tmp_path: Path) -> None:
    said = headwise("retrain", str(done), "--without", "1", "--out", str(tmp_path / "less"), "--quiet")
    assert "without.html" in said.out
    assert "…" not in said.out, "headings are whole"
    assert [said.out.count(word) for word in ("download,", "training,", "without ")] == [3, 3, 2]
    assert (tmp_path / "less" / "without.html").exists()


def test_newcomers_and_the_forgotten_of_other_tasks(headwise: Headwise, tmp_path: Path) -> None:
    """By the metric of the run, in its own unit."""
    data = ("--data", "synthetic:60:4:6:sites=3:task=regression", "--partition", "natural", "--rounds", "1", "--quiet")
    said = headwise("run", *data, *NEW, "--out", str(tmp_path / "run"))
    told = json.loads((tmp_path / "run" / "result.json").read_text())["new_clients"]
    assert f"joined {told['joined']['0']:.4f} after 0" in said.out
    assert told["joined"]["0"] == hw.Run(tmp_path / "run").new_clients["rows"][0]["rmse"]  # pyright: ignore
    headwise("report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))
    assert f"{told['joined']['5']:.4g}" in (tmp_path / "page.html").read_text()
    headwise("retrain", str(tmp_path / "run"), "--without", "site 1", "--out", str(tmp_path / "less"), "--quiet")
    assert "RMSE (less is better) on own test samples." in (tmp_path / "less" / "without.html").read_text()


def test_a_run_that_goes_on_counts_the_clients_of_its_data(headwise: Headwise, tmp_path: Path) -> None:
    data = ("--data", "synthetic:60:4:6:sites=3", "--partition", "natural", "--rounds", "1", "--quiet")
    headwise("run", *data, "--out", str(tmp_path / "run"))
    more = ("run", "--from", str(tmp_path / "run"), "--rounds", "1", "--quiet", "--out", str(tmp_path / "more"))
    assert_refused(headwise(*more, "--clients", "5"), "5", "3")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("run --from nowhere", ("nowhere",)),
        ("run --from RUN --method fedrep --out out", ("method", "must keep it")),
        ("run --from RUN --set origin.rounds=-1 --out out", ("origin.rounds is -1",)),
        ("retrain RUN", ("--without",)),
        ("retrain RUN --without 7 --out out", ("has no client '7'", "0 to 2")),
        ("adapt RUN nowhere.npz", ("nowhere.npz",)),
        ("adapt RUN empty.npz", ("empty.npz",)),
        ("adapt RUN empty.npz --epochs -1", ("--epochs", "-1")),
        ("adapt RUN empty.npz -o RUN", ("exists already",)),
    ],
)
def test_refusals(
    words: str, parts: tuple[str, ...], headwise: Headwise, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.npz").write_bytes(b"")
    said = headwise(*words.replace("RUN", str(done)).split())
    assert_refused(said, *parts)
    assert not (tmp_path / "out").exists()
