"""`headwise retrain --without`: as if a client had never been there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.app.continue_from import continue_from, settings_after
from headwise.app.retrain import PAGE, retrain
from headwise.engine.events import Event, RoundEnded
from headwise.errors import ConfigError, RunError
from headwise.records import encode
from headwise.report.page import tabulate_forgotten
from headwise.settings.experiment import experiment_from
from same_runs import rows
from small_runs import experiment

DESCRIBED = """
format = "csv"
path = "patients.csv"
client = "hospital"
target = "ill"
[features]
number = ["age"]
category = ["sex"]
"""


def hospitals(folder: Path, names: list[str], strange: str = "") -> str:
    """A table of these hospitals; a strange one has ages and a category that nobody else has."""
    folder.mkdir(exist_ok=True)
    lines = ["hospital,age,sex,ill"]
    for k, name in enumerate(names):
        rng = np.random.default_rng(ord(name[0]))
        for _ in range(24 + 8 * k):
            age = rng.normal() + (1000 if name == strange else 0)
            sex = "x" if name == strange else rng.choice(["f", "m"])
            lines.append(f"{name},{age:.4f},{sex},{'yes' if rng.normal() + age > 0 else 'no'}")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    (folder / "data.toml").write_text(DESCRIBED)
    return str(folder / "data.toml")


UNEQUAL = ("bytes_down", "bytes_evaluation", "fields")
"""the bytes of messages with an entry for each number, such as that of APPLE"""


def watched(last: list[bytes]) -> Any:
    def watch(event: Event) -> None:
        if isinstance(event, RoundEnded):
            last.append(encode(event.progress.server))

    return [watch]


def results(run: hw.Run) -> list[Any]:
    return rows(run, *UNEQUAL)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedah", "fedgmh", "apple", "fedftha:include_unseen=true"])
def test_it_is_the_run_of_the_others(method: str, tmp_path: Path) -> None:
    """To the bit: rounds, clients and the server's last state are those of a run whose data never had the client.

    Forgetting the last client makes the two comparable: no number changes.
    """
    asked: dict[str, Any] = {"method": method, "rounds": 2, "model": "mlp:4", "engine": {"workers": 1}}
    with_all = hw.run(
        experiment_from({**asked, "data": hospitals(tmp_path / "a", ["n", "o", "z"], "z")}), tmp_path / "with"
    )
    forgot, never = list[bytes](), list[bytes]()
    after = retrain(with_all.path, ["z"], tmp_path / "without", observers=watched(forgot))
    data = hospitals(tmp_path / "b", ["n", "o"])
    other = hw.run(experiment_from({**asked, "data": data}), tmp_path / "never", observers=watched(never))
    assert forgot == never
    assert results(after) == results(other)
    assert results(after) != results(with_all)
    assert after.floor == other.floor
    assert after.partition["train"] == [*other.partition["train"], [0, 0]]


def test_the_others_are_drawn_as_before_and_keep_their_numbers(tmp_path: Path) -> None:
    before = hw.run(experiment(6), tmp_path / "with")
    after = retrain(before.path, [1, "3"], tmp_path / "without")
    for then, now in zip(before.rounds, after.rounds, strict=True):
        assert now.get("clients") == [c for c in then.get("clients", []) if c not in (1, 3)]
        assert now.get("pre", {}).get("clients") == 3
    assert after.manifest["experiment"]["without"] == ["1", "3"]
    assert {line["client"] for line in after.clients} == {0, 2, 4}


def test_a_round_whose_clients_are_all_forgotten_changes_nothing(tmp_path: Path) -> None:
    servers: list[bytes] = []
    before = hw.run(experiment(4, sampling={"ratio": 0.2}), tmp_path / "with")
    (gone,) = before.rounds[1].get("clients", [])
    after = retrain(before.path, [gone], tmp_path / "without", observers=watched(servers))
    assert after.rounds[1].get("clients") == []
    assert servers[1] == servers[0]
    assert after.complete


def test_what_it_changes_for_the_others(tmp_path: Path) -> None:
    before = hw.run(experiment(3), tmp_path / "with")
    after = retrain(before.path, [2], tmp_path / "without")
    head, rows = tabulate_forgotten(before, after)
    assert [row[0] for row in rows] == ["0", "1", "3", "4", "mean"]
    then, now = (run.last_scores()["pre"][3] for run in (before, after))
    cells = dict(zip(head, rows[2], strict=True))
    assert cells["after a download, with"] == f"{100 * then:.2f}"
    assert cells["after a download, change"] == f"{100 * (now - then):+.2f}"
    page = (after.path / PAGE).read_text()
    assert "without 2" in page
    assert all(cell in page for row in rows for cell in row)


def test_it_resumes(tmp_path: Path) -> None:
    before = hw.run(experiment(3), tmp_path / "with")
    whole = retrain(before.path, [0], tmp_path / "whole")
    (tmp_path / "whole" / "result.json").unlink()
    assert results(hw.resume(tmp_path / "whole")) == results(whole)


def test_what_cannot_be_forgotten_gets_a_sentence(tmp_path: Path) -> None:
    before = hw.run(experiment(2), tmp_path / "with")
    after = retrain(before.path, [2], tmp_path / "without")
    hw.run(continue_from({**settings_after(before.path), "rounds": 1}), tmp_path / "more")
    hw.run(experiment(3, stop={"budget": 1e-9}), tmp_path / "short")
    cases: list[tuple[Path, list[Any], type[Exception], str]] = [
        (before.path, ["va"], RunError, "has no client 'va': its clients are 0 to 4"),
        (before.path, [], ConfigError, "without is empty"),
        (before.path, [0, 1, 2, 3, 4], ConfigError, "none of the 5 clients is left to train"),
        (after.path, [2], ConfigError, "without names '2', but .* is already without it"),
        (tmp_path / "more", [2], RunError, "continues from .*, which trained on them"),
        (tmp_path / "short", [2], RunError, "has not ended"),
    ]
    for folder, who, kind, sentence in cases:
        with pytest.raises(kind, match=sentence):
            retrain(folder, who, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_unknown_clients_in_a_new_run_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without names 'va', but this data has no client 'va'"):
        hw.run(experiment(1, without=["va"]), tmp_path / "out")
