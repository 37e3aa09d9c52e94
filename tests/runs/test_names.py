"""Clients keep their names: in a run's folder, its tables and pages, and in what is said when one fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headwise.app.launch import run
from headwise.data.own.objects import store
from headwise.engine.client.jobs import Job, handle
from headwise.errors import ClientError, RunError
from headwise.methods.fedavg import FedAvg
from headwise.records import Nothing
from headwise.report import words
from headwise.report.page import tabulate_partition, write_page
from headwise.report.results import collect
from headwise.runs.query import Run, number_of
from headwise.settings.experiment import Experiment
from headwise.testing.toy import toy_plan

NAMES = ("va", "7", "<b>lima</b>")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("named")
    clients = {name: (rng.normal(size=(12, 3)), np.arange(12) % 2) for name in NAMES}
    data = store(clients, folder)
    return run(Experiment(data=str(data), rounds=1), folder / "run")


def test_a_run_knows_the_names_of_its_clients(named: Run) -> None:
    assert named.names == NAMES
    assert [(line["client"], line.get("name")) for line in named.clients if line["round"]] == [*enumerate(NAMES)]


@pytest.mark.parametrize(("who", "number"), [("va", 0), (7, 1), ("7", 1), ("<b>lima</b>", 2)])
def test_a_client_has_a_name_and_a_number(named: Run, who: str | int, number: int) -> None:
    assert named.number_of(who) == number


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("vaa", "has no client 'vaa': did you mean 'va'?"),
        ("x", "has no client 'x': its clients are 7, <b>lima</b>, va."),
        (1, "has no client 1: its clients are 7, <b>lima</b>, va."),
        (True, "has no client True: its clients are 7, <b>lima</b>, va."),
        (-1, "has no client -1: its clients are 7, <b>lima</b>, va."),
    ],
)
def test_an_unknown_client_is_one_sentence(named: Run, who: str | int, said: str) -> None:
    with pytest.raises(RunError) as error:
        named.number_of(who)
    assert str(error.value) == f"{named.path} {said}"


def test_among_very_many_names_none_is_suggested() -> None:
    with pytest.raises(RunError, match="has no client 'x': it has 2,000 others"):
        number_of("x", [f"c{k}" for k in range(2000)], 2000, Path("run"))


def test_without_names_there_are_numbers(tmp_path: Path) -> None:
    plain = run(Experiment(rounds=1, clients=3, fraction=0.1), tmp_path / "run")
    assert plain.names == ()
    assert "name" not in plain.clients[0]
    assert plain.number_of("2") == plain.number_of(2) == 2
    with pytest.raises(RunError, match="has no client 'va': its clients are 0 to 2"):
        plain.number_of("va")


@pytest.mark.parametrize("names", [["va"], ["va", "va", "x"], [1, 2, 3], "abc"])
def test_damaged_names_are_one_sentence(named: Run, names: object) -> None:
    twin = Run(named.path)
    path = named.path / "partition.json"
    whole = path.read_bytes()
    twin.manifest.pop("partition_digest")
    try:
        path.write_text(json.dumps({**json.loads(whole), "names": names}))
        with pytest.raises(RunError, match=r"partition\.json is damaged"):
            _ = twin.names
    finally:
        path.write_bytes(whole)


def test_pages_and_tables_have_names(named: Run, tmp_path: Path) -> None:
    (setting,) = collect([named.path])
    assert setting.label_of(0) == "0 (va)"
    page = write_page([setting], tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"names":["va","7",' in page.replace(", ", ",").replace(": ", ":")
    assert "<b>lima</b>" not in page
    head, rows = tabulate_partition(named.partition, ["0", "1"], named.names)
    assert head[:3] == ["client", "name", "train"]
    assert [row[:2] for row in rows] == [["0", "va"], ["1", "7"], ["2", "<b>lima</b>"]]


def test_words_name_clients(named: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (setting,) = collect([named.path])
    monkeypatch.setitem(vars(setting.run), "floors", [1.1, 0.0, 1.1])
    assert "2 of 3 clients (0 (va), 2 (<b>lima</b>)) do worse than by guessing." in words.describe_clients(setting)[0]


class Failing(FedAvg):
    def local_update(self, me, down, local):  # pyright: ignore
        raise ValueError("oh")


def test_a_client_that_fails_is_named() -> None:
    plan = toy_plan(Failing())
    object.__setattr__(plan.data, "names", tuple(f"clinic {c}" for c in range(len(plan.data))))
    with pytest.raises(ClientError, match=r"failed at client 1 \(clinic 1\) in round 1"):
        handle(plan, Job("fit", 1, 1, Nothing()), None)


def test_a_name_that_is_a_number_comes_first() -> None:
    """A DataFrame's client column may hold integers, in any order."""
    for who in ("2", 2):
        assert number_of(who, ("2", "0", "7"), 3, Path("run")) == 0
    with pytest.raises(RunError, match="has no client 1"):
        number_of(1, ("2", "0", "7"), 3, Path("run"))
    assert number_of(7, ("2", "0", "7"), 3, Path("run")) == 2
