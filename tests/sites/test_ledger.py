"""A site's ledger adds up what a client has spent, whatever a server calls its runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from federations import experiment, write_site

from headwise.cli import main
from headwise.contract.averaging import Shared
from headwise.engine.client.jobs import Job
from headwise.engine.executors.local import Serial
from headwise.errors import ConfigError
from headwise.sites.facts import resolve_for_sites
from headwise.sites.site.policy import read_policy
from headwise.sites.site.site import open_site
from headwise.sites.site.site_file import read_site
from headwise.sites.states import SiteStates
from headwise.sites.transport.envelope import SiteMessage
from headwise.sites.transport.messages import Order, SiteJob, pack_order

DATA = "synthetic:60:4:6:sites=1"
NOISE = 2.0
"""one round costs an epsilon of 2.17, two 3.19, three 4.0 (delta 1e-5)"""


def asked(rounds: int = 1, noise: float | None = NOISE, **more: Any) -> str:
    """A private experiment with one client, as a server sends it."""
    privacy = {} if noise is None else {"clip": 1.0, "noise": noise}
    plain = resolve_for_sites(
        experiment("fedavg", clients=1, rounds=rounds, data=DATA, **{"privacy": privacy, **more})
    ).to_plain()
    return json.dumps(plain)


def at(folder: Path, allow: str = "epsilon = 3.0") -> Path:
    return write_site(folder / "site", [0], allow, DATA)


def order(
    path: Path, run: str, *rounds: int, text: str | None = None, task: Any = "fit", state: str = ""
) -> SiteMessage:
    text = text or asked()
    down = Shared(read_policy(path).plan(text).models[0].params())
    return pack_order(Order(run, text, [SiteJob(Job(task, 0, t, down), state) for t in rounds]))


def answer(path: Path, *args: Any, **changes: Any) -> str | None:
    """Why the site refuses; None if it answers. The site is reopened, so it only knows what is on disk."""
    found = open_site(path).answer("train", order(path, *args, **changes))
    said = json.loads(found.text)
    assert bool(found.records) is ("error" not in said and changes.get("task", "fit") == "fit")
    return said.get("error")


def ledger(path: Path) -> Path:
    return path.parent / "ledger-0.json"


# -- rounds


@pytest.mark.parametrize(
    ("t", "task"),
    [
        (t, task)
        for t in (0, 2, 10_000_000)
        for task in ("fit", "idle", "pre", "global")
        if t or task in ("fit", "idle")
    ],
)  # before round 1, a site only measures
def test_rounds_that_the_experiment_does_not_have_are_refused(t: int, task: str, tmp_path: Path) -> None:
    path = at(tmp_path, "")
    assert answer(path, "run-1", t, task=task) == f"site got an order for round {t}, but the rounds are 1 to 1."
    assert [p.name for p in path.parent.iterdir()] == ["site.toml"]


def test_a_round_with_eight_digits_is_found_again(tmp_path: Path) -> None:
    kept = SiteStates(tmp_path, "run-1")
    digests = [kept.put(0, t, b"%d" % t, "") for t in (9_999_999, 10_000_000)]
    assert [v.t for v in kept.versions(0)] == [9_999_999, 10_000_000]
    assert kept.take(0, digests[1]) == b"10000000"


def test_under_privacy_rounds_come_in_their_order_and_once(tmp_path: Path) -> None:
    path, text = at(tmp_path, "epsilon = 30.0"), asked(rounds=5)
    assert answer(path, "run-1", 2, text=text) is None
    for t in (1, 2):
        assert answer(path, "run-1", t, text=text) == f"site has already answered round {t} or later for client 0."
    assert answer(path, "run-1", 4, text=text) is None  # it was not sampled in the third
    assert "has already answered round 3 or later for client 0" in str(answer(path, "run-1", 3, text=text))


def test_a_run_has_one_experiment(tmp_path: Path) -> None:
    path = at(tmp_path, "epsilon = 30.0")
    assert answer(path, "run-1", 1, text=asked(rounds=2)) is None
    for task in ("fit", "idle", "pre"):
        why = answer(path, "run-1", 2, text=asked(rounds=2, noise=5.0), task=task)
        assert why == "site knows run-1 with another experiment or other data of client 0."
    assert answer(path, "run-1", 2, text=asked(rounds=2)) is None


def test_without_privacy_a_server_that_goes_back_is_answered_and_all_is_written_down(tmp_path: Path) -> None:
    path, text = at(tmp_path, ""), asked(rounds=3, noise=None)
    assert [answer(path, "run-1", t, text=text) for t in (1, 2, 1)] == [None] * 3
    assert json.loads(ledger(path).read_text())["runs"][0]["answers"] == 3


# -- what is spent


def test_a_server_that_asks_for_more_and_more_gets_no_more_than_is_allowed(tmp_path: Path) -> None:
    """An attack that once worked: a one-round experiment, orders for 200 rounds, and new run names."""
    path = at(tmp_path)
    said = [answer(path, "run-1", t) for t in range(1, 201)]
    said += [answer(path, f"run-{k}", 1, text=asked(seed=k)) for k in range(2, 12)]
    assert said.count(None) == 1
    assert said[-1] == (
        "site limits client 0 to a total epsilon of 3: 2.17 is spent, and the rounds ahead (1) would bring it to 3.19."
    )


def test_the_total_is_a_setting_of_its_own(tmp_path: Path) -> None:
    path = at(tmp_path, "epsilon = 3.0\nepsilon_total = 3.5")
    assert [answer(path, f"run-{k}", 1) is None for k in range(4)] == [True, True, False, False]
    at(tmp_path, "epsilon = 3.0\nepsilon_total = 4.2")
    assert [answer(path, f"run-{k}", 1) is None for k in range(4)] == [False, False, True, False]


def test_a_run_that_could_not_be_ended_is_not_begun_and_the_server_hears_so(tmp_path: Path) -> None:
    path = at(tmp_path, "epsilon = 3.5")
    assert answer(path, "run-1", 1) is None
    assert "the rounds ahead (2) would bring it to 4" in str(answer(path, "run-2", 1, text=asked(rounds=2)))
    introduced = json.loads(read_policy(path).introduce(asked(rounds=2)).text)
    assert "the rounds ahead (2) would bring it to 4" in introduced["refusal"]
    assert introduced["facts"] == []


def test_a_run_that_was_begun_may_be_gone_on_with(tmp_path: Path) -> None:
    path, text = at(tmp_path, "epsilon = 4.5"), asked(rounds=3)
    assert answer(path, "run-1", 1, text=text) is None
    assert json.loads(read_policy(path).introduce(text).text)["refusal"] is None
    assert [answer(path, "run-1", t, text=text) for t in (2, 3)] == [None, None]
    assert "the rounds ahead (3)" in json.loads(read_policy(path).introduce(text).text)["refusal"]


def test_what_a_client_tells_is_charged_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    train = Serial.run

    def die(self: Serial, jobs: Any) -> Any:
        if not self.plan.experiment.evaluate.moments:  # the rehearsal, which comes before any charge
            return train(self, jobs)
        raise Killed

    path = at(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Serial, "run", die)
        with pytest.raises(Killed):
            answer(path, "run-1", 1)
    assert "has already answered round 1 or later for client 0" in str(answer(path, "run-1", 1))
    assert "2.17 is spent" in str(answer(path, "run-2", 1))


def test_a_ledger_that_can_not_be_written_lets_nothing_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = at(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    assert "ledger-0.json can't be written: No space left on device" in str(answer(path, "run-1", 1))


def test_an_order_that_is_refused_costs_nothing(tmp_path: Path) -> None:
    path = at(tmp_path)
    assert "has no state 000000000000" in str(answer(path, "run-1", 1, state="0" * 64))
    assert "one job per client" in str(answer(path, "run-1", 1, 1))
    assert answer(path, "run-1", 1) is None


def test_two_orders_at_the_same_time_are_charged_one_after_the_other(tmp_path: Path) -> None:
    path = at(tmp_path)
    messages = [order(path, f"run-{k}", 1) for k in range(6)]
    sites = [open_site(path) for _ in messages]
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda site, message: site.answer("train", message), sites, messages))
    assert ["error" in json.loads(s.text) for s in said].count(False) == 1


def test_erasing_a_model_erases_nothing_from_the_ledger(tmp_path: Path) -> None:
    path = at(tmp_path)
    assert answer(path, "run-1", 1) is None
    with pytest.raises(SystemExit):
        main(["site", "erase", str(path.parent), "--run", "run-1", "--client", "0", "--yes"])
    assert not list((path.parent / "states").iterdir())
    assert "has already answered round 1 or later for client 0" in str(answer(path, "run-1", 1))
    assert "2.17 is spent" in str(answer(path, "run-2", 1))


@pytest.mark.parametrize(("allow", "told"), [("", False), ("scores = true", True), ("scores = false", False)])
def test_scores_are_beyond_epsilon_and_stay_unless_the_site_says_otherwise(
    allow: str, told: bool, tmp_path: Path
) -> None:
    path = at(tmp_path, f"epsilon = 3.0\n{allow}")
    for task in ("fit", "pre", "global"):
        (said,) = json.loads(open_site(path).answer("train", order(path, "run-1", 1, task=task)).text)["answers"]
        assert (said["test"] is not None, said["val"] is not None) == (told, told)


# -- a ledger that can't be trusted


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b'"answers": 1') + len('"answers": ')] ^= 1  # one answer becomes none
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-20]),
    "zeroed": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "a bit": flip,
    "deep": lambda p: p.write_text("[" * 100_000),
    "a number": lambda p: p.write_text("5"),
    "another's": lambda p: p.write_text(p.read_text().replace('"client": 0', '"client": 1')),
    "not UTF-8": lambda p: p.write_bytes(b"\xff" + p.read_bytes()),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "removed": lambda p: p.unlink(),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_ledger_that_is_damaged_or_gone_means_no_answer(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = at(tmp_path, "epsilon = 30.0")
    assert answer(path, "run-1", 1) is None
    DAMAGES[name](ledger(path))
    for run in ("run-1", "run-2"):
        why = str(answer(path, run, 1))
        assert any(f"{ledger(path)} {word}" in why for word in ("is damaged", "can't be read", "is missing or too old"))
    if name != "removed":
        with pytest.raises(SystemExit) as stop:
            main(["site", "list", str(path.parent)])
        assert stop.value.code == 2
        assert capsys.readouterr().err.startswith(f"headwise: {ledger(path)} ")


def test_an_older_ledger_in_its_place_is_noticed(tmp_path: Path) -> None:
    path, text = at(tmp_path, "epsilon = 30.0"), asked(rounds=3)
    assert answer(path, "run-1", 1, text=text) is None
    shutil.copy(ledger(path), tmp_path / "backup")
    assert answer(path, "run-1", 2, text=text) is None
    shutil.copy(tmp_path / "backup", ledger(path))
    assert "is missing or too old: it lacks rounds of client 0 in run-1" in str(answer(path, "run-2", 1, text=text))


# -- shown and set


def test_site_list_shows_what_is_spent_and_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = at(tmp_path, "epsilon = 3.0")
    assert answer(path, "run-1", 1) is None
    with pytest.raises(SystemExit):
        main(["site", "list", str(path.parent)])
    line = "client 0  spent epsilon 2.17 (of the client) at delta 1e-05, 0.834 of 3 left\n"
    assert capsys.readouterr().out.endswith(line)
    at(tmp_path, "")
    assert answer(path, "run-2", 1, text=asked(noise=None)) is None
    with pytest.raises(SystemExit):
        main(["site", "list", str(path.parent), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["spent"]
    assert found.pop("epsilon") == pytest.approx(2.166, abs=1e-3)
    assert found == {"client": 0, "delta": 1e-5, "total": None, "left": None, "unit": "client", "unprotected": 1}


@pytest.mark.parametrize("allow", ["epsilon_total = 3.0", "epsilon = 3.0\nepsilon_total = 2.0"])
def test_a_total_below_that_of_one_run_is_a_mistake(allow: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epsilon_total is \d, but must be at least allow.epsilon, which is "):
        read_site(at(tmp_path, allow))
