"""Clients that fail: what is refused and why, and when the run continues or ends."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_of_tests import Played, even_federation, prepare

import headwise as hw
from headwise.app import registry
from headwise.authoring import Averaging, Nothing
from headwise.contract.averaging import Shared
from headwise.contract.method import Update, record_types
from headwise.engine.answers import judge
from headwise.engine.client.jobs import Answer
from headwise.engine.driver import drive
from headwise.engine.events import ClientFailed, Event
from headwise.engine.executors.faulty import Faulty
from headwise.engine.executors.local import Serial
from headwise.engine.executors.pool import Pool
from headwise.engine.host import SilenceWatch, stop_after_round
from headwise.engine.plan import Plan
from headwise.errors import ClientError, ConfigError, ServerError
from headwise.methods.fedavg import FedAvg
from headwise.params import Params
from headwise.records import same
from headwise.settings.names import list_names
from headwise.settings.options import FAULTS, Evaluate, Faults, Inject
from waiting import PATIENCE, until

REFUSED = {
    "drop": "no answer", "error": "raised", "twice": "twice", "stale": "another round", "nan": "not finite",
    "inf": "not finite", "names": "names", "shapes": "shapes", "dtypes": "dtypes", "norm": "norm", "samples": "samples",
    "slow": "late",
}  # fmt: skip
"""what each fault is counted as"""
LAYOUTS = ("names", "shapes", "dtypes")
RARELY = Evaluate(every=3, moments=("post",))


@dataclasses.dataclass(frozen=True)
class Moody(Averaging[Nothing]):
    """Client 2 fails: by an exception, or by never coming back."""

    hangs: bool = False
    """whether it hangs"""

    def client_init(self, local: Any) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Any) -> Update[Shared, Nothing]:
        if local.client == 2 and not self.hangs:
            raise ZeroDivisionError("by hand")
        if local.client == 2:
            left, _ = signal.getitimer(signal.ITIMER_REAL)
            assert 0 < left <= PATIENCE, "the alarm is set"
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # its time is up
            while True:
                time.sleep(0.01)
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Any) -> Any:
        return local.model(down.w)


def faults(inject: str = "", **settings: Any) -> Faults:
    return Faults(inject=Inject.parse(inject, "faults.inject"), **settings)


def plan(settings: Faults, method: Any = None, clients: int = 6, **changes: Any) -> Plan:
    return prepare(method or FedAvg(), even_federation(clients), faults=settings, **changes)


def run(made: Plan) -> tuple[Played, list[ClientFailed]]:
    played, failed = Played(), list[ClientFailed]()

    def see(event: Event) -> None:
        played.see(event)
        if isinstance(event, ClientFailed):
            failed.append(event)

    with closing(Faulty(Serial(made), made)) as executor:
        played.reason = drive(made, executor, [see])
    return played, failed


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_refused_for_its_own_reason(kind: str) -> None:
    played, told = run(plan(faults(f"{kind}=0.4", max_norm=1e6, deadline=PATIENCE)))
    rows = [row["failed"] for row in played.rows if "failed" in row]
    assert rows, "this seed makes some"
    assert {reason for row in rows for reason in row} == {REFUSED[kind]}
    assert Counter(e.client for e in told) == Counter(c for row in rows for who in row.values() for c in who)
    assert all(f"client {e.client} " in e.detail and e.detail.endswith(".") for e in told)
    assert played.reason == "finished"


@pytest.mark.parametrize("kind", [k for k in FAULTS if k != "twice"])
def test_a_round_is_that_of_those_who_did_not_fail(kind: str) -> None:
    """The refused ones leave no trace in the server's state."""
    made = plan(faults(f"{kind}=0.4", max_norm=1e6, deadline=PATIENCE), rounds=1)
    played, _ = run(made)
    failed = {c for who in played.rows[0]["failed"].values() for c in who}
    others = sorted(set(range(6)) - failed)
    assert 0 < len(others) < 6
    assert played.ended[0].row["fields"]["up"]["w"] == len(others) * _size(made)
    shares = tuple(("drop", low, high) for _, low, high in made.experiment.faults.inject.shares)
    alone, _ = run(made.with_settings(faults=dataclasses.replace(made.experiment.faults, inject=Inject(shares))))
    assert alone.rows[0]["failed"] == {"no answer": sorted(failed)}
    assert same(played.ended[0].progress.server, alone.ended[0].progress.server)


def _size(made: Plan) -> int:
    return sum(t.numel() * t.element_size() for t in made.models[0].params().values())


def test_the_second_of_two_answers_is_ignored() -> None:
    twice, _ = run(plan(faults("twice=0.5")))
    plain, _ = run(plan(faults()))
    assert any("failed" in row for row in twice.rows)
    assert same(twice.ended[-1].progress.server, plain.ended[-1].progress.server)


def test_without_faults_nothing_changes() -> None:
    """Checking replies changes no result."""
    judged, _ = run(plan(faults(on_failure="skip")))
    plain, _ = run(plan(faults()))
    assert judged.rows == plain.rows
    assert not any("failed" in row for row in judged.rows)


def test_slow_clients_count_where_nobody_is_in_a_hurry() -> None:
    slow, told = run(plan(faults("slow=0.5")))
    plain, _ = run(plan(faults()))
    assert (slow.rows, told) == (plain.rows, [])


def test_faults_follow_the_seed() -> None:
    one, other, third = (run(plan(faults("drop=0.3,nan=0.2"), seed=seed))[0].rows for seed in (0, 0, 1))
    assert one == other
    assert [row.get("failed") for row in one] != [row.get("failed") for row in third]


def test_shares_are_kept_to() -> None:
    made = plan(faults("drop=0.3,nan=0.1", min_replies=0), clients=200, rounds=3, evaluate=RARELY)
    found = Counter(r for row in run(made)[0].rows for r, who in row["failed"].items() for _ in who)
    assert found["no answer"] == pytest.approx(180, abs=45)
    assert found["not finite"] == pytest.approx(60, abs=30)


def test_fedahs_dropout_study_draws_a_share_in_each_round() -> None:
    made = plan(faults("fedah"), clients=60, rounds=12, evaluate=RARELY)
    there = [60 - len(row.get("failed", {}).get("no answer", [])) for row in run(made)[0].rows]
    assert min(there) < 25 < 40 < max(there)
    assert 18 < sum(there) / len(there) < 48


@pytest.mark.parametrize("phase", ["server_init", "broadcast", "aggregate"])
def test_what_the_servers_half_raises_is_one_sentence(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(FedAvg, phase, broken)
    where = rf"round [01] \({phase}, test_faults.py, line \d+\)"
    said = rf"^FedAvg failed at the server in {where}: ZeroDivisionError: by hand\.$"
    with pytest.raises(ServerError, match=said):
        run(plan(faults()))


def test_an_exception_ends_the_run_unless_told_otherwise() -> None:
    with pytest.raises(ClientError, match=r"Moody failed at client 2 in round 1 .*ZeroDivisionError: by hand"):
        run(plan(faults(), Moody()))
    played, told = run(plan(faults(on_failure="skip"), Moody()))
    assert [row["failed"] for row in played.rows] == [{"raised": [2]}] * 3
    assert "ZeroDivisionError: by hand" in told[0].detail
    assert all(2 not in {line["client"] for line in e.clients if "post" in line} for e in played.ended)


@dataclasses.dataclass(frozen=True)
class Odd(Moody):
    """Every client does something that no exception of its own reports."""

    way: str = "exit"
    """what it does"""

    def local_update(self, me: Nothing, down: Shared, local: Any) -> Update[Shared, Nothing]:
        if self.way == "exit":
            sys.exit(0)
        if self.way == "complex":
            return Update(Shared(down.w.map(lambda t: t.to(torch.complex64))), me, local.model(down.w))
        until(lambda: "warned" in LOGGED, "no warning came")
        return Update(Shared(down.w), me, local.model(down.w))

    def aggregate(self, server: Any, replies: Any, central: Any) -> Any:
        sys.exit("by hand")


LOGGED: set[str] = set()


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("exit", r"Odd failed at client \d in round 1 \(fit, test_faults.py, line \d+\): SystemExit: 0\."),
        ("complex", r"Odd failed at client \d in round 1 .* local_update returned 'w/\S+' as torch.complex64, which a"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_method_may_not_do_is_one_sentence(way: str, sentence: str, workers: int) -> None:
    made = plan(faults(), Odd(way=way))
    executor = Serial(made) if workers == 1 else Pool(made, partial(_odd, way), 2)
    with closing(executor), pytest.raises(ClientError, match=sentence):
        drive(made, executor, [])


def _odd(way: str, data: Any) -> Plan:
    return dataclasses.replace(plan(faults(), Odd(way=way)), data=data)


def test_a_server_half_that_exits_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_faults.LOGGED", {"warned"})
    with pytest.raises(ServerError, match=r"Odd failed at the server in round 1 .*: SystemExit: by hand\."):
        run(plan(faults(), Odd(way="waits")))


def test_a_client_that_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []

    def warn(text: str) -> None:
        messages.append(text)
        LOGGED.add("warned")

    monkeypatch.setattr("headwise.engine.host.WATCH", SilenceWatch(0.1))
    monkeypatch.setattr(logging.getLogger("headwise"), "warning", warn)
    with pytest.raises(ServerError):
        run(plan(faults(), Odd(way="waits"), clients=1))
    LOGGED.clear()
    assert messages[0].startswith("Odd at client 0 (fit, round 1) has not returned for 0 seconds: ")


def test_warnings_about_silence_come_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    time_module = SimpleNamespace(monotonic=lambda: clock[0], sleep=threading.Event().wait)
    monkeypatch.setattr("headwise.engine.host.time", time_module)
    watch = SilenceWatch(60)
    with watch.watch("client 3"):
        for second in range(1000):
            clock[0] = float(second)
            watch.warn()
    warnings = [record.getMessage() for record in caplog.records]
    assert [text.split(" seconds")[0] for text in warnings] == [
        f"client 3 has not returned for {k}" for k in (60, 120, 240, 480, 960)
    ]
    assert all("set faults.deadline" in text for text in warnings)


def test_the_first_interrupt_says_how_to_stop_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with stop_after_round() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        assert caplog.messages == ["stopping after this round; interrupt again to stop at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_client_that_hangs_is_given_up_at_the_deadline() -> None:
    played, _ = run(plan(faults(on_failure="skip", deadline=PATIENCE), Moody(hangs=True), rounds=1))
    assert played.rows[0]["failed"] == {"late": [2]}


def test_who_gave_no_answer_is_asked_again() -> None:
    once, _ = run(plan(faults("drop=0.5", min_replies=0)))
    again, told = run(plan(faults("drop=0.5", on_failure="retry", retries=8)))
    assert any("failed" in row for row in once.rows)
    assert told, "the first time, some failed"
    assert not any("failed" in row for row in again.rows)
    plain, _ = run(plan(faults()))
    assert same(again.ended[-1].progress.server, plain.ended[-1].progress.server), "nobody trained twice"


def test_a_bug_is_no_better_the_third_time() -> None:
    played, told = run(plan(faults(on_failure="retry"), Moody(), rounds=1))
    assert played.rows[0]["failed"] == {"raised": [2]}
    assert len(told) == 3


def test_a_client_that_fails_keeps_its_state() -> None:
    per = registry.find("method", "fedper")()
    made = plan(faults("drop=0.5,error=0.2", min_replies=0), per, rounds=3)
    played, _ = run(made)
    missed = Counter(c for row in played.rows for who in row["failed"].values() for c in who)
    states = played.ended[-1].states
    assert {c: states[c].trained for c in states} == {c: 3 - missed[c] for c in range(6) if missed[c] < 3}
    assert len(set(missed.values())) > 1


def test_too_few_replies_end_the_run() -> None:
    with pytest.raises(ClientError, match=r"round 1 has \d replies, but faults.min_replies is 6 \(no answer: \d\)\."):
        run(plan(faults("drop=0.5", min_replies=6)))


def test_a_round_without_replies_changes_nothing() -> None:
    played, _ = run(plan(faults("drop=1", min_replies=0)))
    assert same(played.ended[0].progress.server, played.ended[-1].progress.server)
    assert [len(row["failed"]["no answer"]) for row in played.rows] == [6] * 3


def test_faults_that_stop_the_run_say_which_client() -> None:
    with pytest.raises(ClientError, match=r"client \d gave no answer in round 1\."):
        run(plan(faults("drop=0.5", on_failure="stop")))


def answer(up: Any, n: int = 9, client: int = 0) -> Answer:
    return Answer("fit", client, n, up, None, None, 0, 1)


@pytest.mark.parametrize(
    ("n", "fine"), [(9, True), (0, True), (10**7, True), (-1, False), (10**7 + 1, False), (True, False), (2.5, False)]
)
def test_absurd_numbers_of_samples(n: Any, fine: bool) -> None:
    made = plan(faults(on_failure="skip"))
    up = Shared(made.models[0].params())
    assert (judge(made, {0: answer(up, n)}, {0: up}) == []) is fine


def test_the_norm_is_that_of_all_that_is_sent() -> None:
    made = plan(faults(on_failure="skip", max_norm=5.0))
    names = made.models[0].params()
    up = Shared(names.map(torch.zeros_like))
    first, second = list(names)[:2]
    for size, fine in ((4.0, True), (4.01, False)):
        w = {**up.w, first: up.w[first].clone(), second: up.w[second].clone()}
        w[first].view(-1)[0], w[second].view(-1)[0] = 3.0, -size
        assert (judge(made, {0: answer(Shared(Params(w)))}, {0: up}) == []) is fine


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int64, torch.float64, torch.float16], ids=str)
def test_values_of_another_type_are_refused(dtype: torch.dtype) -> None:
    made = plan(faults(on_failure="skip"))
    down = Shared(made.models[0].params())
    up = Shared(down.w.map(lambda t: t.to(dtype)))
    assert [(c, failure.reason) for c, failure in judge(made, {0: answer(up)}, {0: down})] == [(0, "dtypes")]


@pytest.mark.parametrize("name", [n for n in list_names("method") if not registry.find("method", n).fixed_layout])
def test_complex_numbers_are_refused_where_no_layout_is_fixed(name: str) -> None:
    made = plan(faults(on_failure="skip"), registry.find("method", name)())
    up = Shared(made.models[0].params().map(lambda t: t * 1j))
    expected = record_types(type(made.method)).up
    reason = "dtypes" if expected is Shared else "names"
    assert [failure.reason for _, failure in judge(made, {0: answer(up)}, {0: up})] == [reason]


METHODS = list_names("method")


@pytest.mark.parametrize("name", METHODS)
def test_no_honest_reply_is_refused(name: str) -> None:
    played, told = run(plan(faults(on_failure="skip"), registry.find("method", name)(), rounds=2))
    assert [(e.client, e.detail) for e in told] == []
    assert played.reason == "finished"


SENDS = [name for name in METHODS if name != "standalone"]
FIXED = [name for name in SENDS if registry.find("method", name).fixed_layout]


@pytest.mark.parametrize(("name", "kind"), [*((n, "nan") for n in SENDS), *((n, k) for n in FIXED for k in LAYOUTS)])
def test_every_method_is_guarded(name: str, kind: str) -> None:
    """Whatever it sends; layouts that are not fixed can't be checked."""
    _, told = run(plan(faults(f"{kind}=0.2"), registry.find("method", name)(), rounds=2, seed=1))
    assert {e.reason for e in told} == {REFUSED[kind]}


def test_layouts_that_tie_are_all_refused() -> None:
    """Class means have no layout that the server could know, so a tie is refused."""
    gh = registry.find("method", "fedgh")()
    played, _ = run(plan(faults("shapes=0.25", min_replies=0), gh, rounds=1))
    assert played.rows[0]["failed"] == {"at odds": [0, 1, 2, 3, 4, 5]}, "three are broken"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dorp=0.3", "did you mean 'drop'?"),
        ("drop", "the share must be from 0 to 1"),
        ("drop=2", "the share must be from 0 to 1"),
        ("drop=-0.1", "the share must be from 0 to 1"),
        ("drop=nan", "the share must be from 0 to 1"),
        ("drop=0.9..0.1", "the share must be from 0 to 1"),
        ("drop=0.6,nan=0.6", "add up to at most 1"),
        ("drop=0.1,drop=0.1", "at most once"),
        ("drop=0.1,", "faults.inject names ''"),
        (3, "must be a string"),
    ],
)
def test_faults_that_nobody_understands(text: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=r"faults\.inject") as error:
        hw.Experiment(faults={"inject": text})
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["", "drop=0.3", "drop=0..0.9", "drop=0.25,nan=0.05,slow=0.1"])
def test_faults_are_read_and_written_alike(text: str) -> None:
    assert hw.Experiment(faults={"inject": text}).to_plain()["faults"]["inject"] == text


def test_the_policy_is_skip_where_faults_are_made() -> None:
    assert faults().reaction == "stop"
    assert faults("nan=0.1").reaction == "skip"
    assert faults("nan=0.1", on_failure="stop").reaction == "stop"
