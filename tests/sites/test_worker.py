"""A site's worker: lives on between messages, and its death loses nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from federations import experiment, write_site

from headwise.cli import main
from headwise.contract.averaging import Shared
from headwise.disk.jsontext import to_json
from headwise.engine.client.jobs import Job
from headwise.engine.host import SilenceWatch
from headwise.sites.facts import resolve_for_sites
from headwise.sites.server.nodes import Nodes, Roster
from headwise.sites.site.policy import forget_data, read_policy
from headwise.sites.site.running import site_status
from headwise.sites.site.site import open_site
from headwise.sites.site.worker import Activity, ForwardWarnings, SiteWorker, describe_order
from headwise.sites.transport import envelope
from headwise.sites.transport.envelope import SOCKET, WORKER_TRIES, NodeSeen, SiteMessage, WorkerLine
from headwise.sites.transport.messages import Order, SiteJob, pack_order
from headwise.sites.transport.superlink import flower_environment
from headwise.sites.transport.supervisor import Supervisor

DATA = """
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.data.sources.synthetic import Synthetic


@dataclass(frozen=True)
class Own(Synthetic):
    '''Synthetic data that count how often they are read.'''

    def load(self, folder):
        with (Path(folder) / "reads").open("a") as file:
            file.write("read\\n")
        return super().load(folder)
"""


def order(path: Path, t: int = 1) -> SiteMessage:
    """A training order for client 1, from the initial state."""
    text = to_json(resolve_for_sites(experiment("fedavg", rounds=3)).to_plain())
    down = Shared(read_policy(path).plan(text).models[0].params())
    return pack_order(Order("run-1", text, [SiteJob(Job("fit", 1, t, down), "")]))


def question() -> SiteMessage:
    return SiteMessage(
        to_json({"experiment": to_json(resolve_for_sites(experiment("fedavg", rounds=3)).to_plain())}), []
    )


def without_process(reply: SiteMessage) -> tuple[dict[str, object], list[bytes]]:
    """What counts in a reply: not which process took how long."""
    said = json.loads(reply.text)
    return {k: v for k, v in said.items() if k not in ("seconds", "process", "memory")}, reply.records


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_site(tmp_path / "site1", [1])
    monkeypatch.chdir(tmp_path / "site1")
    return tmp_path / "site1"


class Keeper:
    """Starts workers for a test, as `headwise site start` does."""

    def __init__(self, home: Path) -> None:
        self.home, self.supervisor = home, Supervisor(home / "flower.log")
        self.said: list[str] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "headwise.sites.site.worker", str(self.home)]
        self.supervisor.start("worker", command, flower_environment(self.home), "secret")

    def until(self, what: str) -> object:
        while True:
            event = self.supervisor.next_event()
            if event is not None and what in event.values:
                return event.values[what]


@pytest.fixture
def keeper(home: Path) -> Iterator[Keeper]:
    found = Keeper(home)
    with found.supervisor.supervise():
        found.start()
        found.until("ready")
        yield found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_the_worker_answers_and_its_death_changes_no_bit(home: Path, keeper: Keeper) -> None:
    strangers_get_nothing(home)
    message = order(home / "site.toml")
    asked = WorkerLine("secret")
    assert json.loads(asked.ask("query", question()).text)["refusal"] is None
    first = asked.ask("train", message)
    worker = json.loads(first.text)["process"]
    assert keeper.until("say") == f"round 1: trained on {json.loads(first.text)['answers'][0]['n']} samples, sent " + (
        f"{first.size / 1000:,.1f} KB"
    )
    os.kill(worker, signal.SIGKILL)
    assert keeper.until("ended") == -signal.SIGKILL
    keeper.start()
    again = asked.ask("train", message)  # the same connection object: it finds the new worker
    assert json.loads(again.text)["process"] != worker
    assert without_process(again) == without_process(first)
    assert without_process(open_site(home / "site.toml").answer("train", message)) == without_process(first)
    found = site_status(home)
    assert (found.activity.run, found.activity.round, found.activity.rounds) == ("run-1", 1, 3)
    assert found.activity.sent == first.size + again.size, "it goes on counting from the disk"


def strangers_get_nothing(home: Path) -> None:
    assert stat.S_IMODE((home / SOCKET).stat().st_mode) == 0o700 & ~0o077
    with Client(SOCKET, "AF_UNIX") as line:
        line.send_bytes(b"a guess")
        with pytest.raises((EOFError, OSError)):
            line.recv_bytes()


def test_a_message_that_kills_every_worker_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads in the place of workers, which hang up in the middle of a message."""
    monkeypatch.setattr(envelope, "WORKER_POLL_SECONDS", 0.01)
    seen: list[str] = []

    def die(kind: str, message: SiteMessage) -> SiteMessage:
        seen.append(kind)
        raise ConnectionResetError

    ready = threading.Event()
    threading.Thread(target=envelope.serve_node, args=("secret", die, ready.set), daemon=True).start()
    ready.wait()
    with pytest.raises(Exception, match=r"the site.s worker died 3 times of one message"):
        WorkerLine("secret").ask("train", SiteMessage("{}", []))
    assert seen == ["train"] * WORKER_TRIES


def test_a_client_that_does_not_return_is_named_where_the_site_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("headwise.sites.site.worker.report_event", lambda **event: lines.append(event["say"]))
    monkeypatch.setattr(logging.getLogger("headwise"), "handlers", [ForwardWarnings()])
    clock = [0.0]
    time_module = SimpleNamespace(monotonic=lambda: clock[0], sleep=threading.Event().wait)
    monkeypatch.setattr("headwise.engine.host.time", time_module)
    watch = SilenceWatch(60)
    with watch.watch("FedAvg at client 1\x1b[2J (fit, round 1)"):
        clock[0] = 61.0
        watch.warn()
    logging.getLogger("headwise").error("not a warning: the log has it")
    (line,) = lines
    assert line.startswith("FedAvg at client 1 [2J (fit, round 1) has not returned for 61 seconds")
    assert line.endswith("stop the run and set faults.deadline.")


def test_data_are_read_once_per_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.sites.site.worker.report_event", lambda **event: None)
    (tmp_path / "own.py").write_text(DATA)
    path = write_site(tmp_path / "site1", [1])
    path.write_text(path.read_text().replace('source = "synthetic:', f'source = "{tmp_path / "own.py"}:'))
    message = order(path)
    forget_data()
    reads = tmp_path / "site1" / "reads"
    reads.unlink()
    worker = SiteWorker(path)
    worker.answer("query", question())
    for _ in range(3):
        assert "error" not in json.loads(worker.answer("train", message).text)
    assert reads.read_text().splitlines() == ["read"]
    worker.answer("query", question())
    worker.answer("train", message)
    assert len(reads.read_text().splitlines()) == 2, "a new run reads what the hospital has now"


def test_what_the_sites_file_says_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("headwise.sites.site.worker.report_event", lambda **event: said.append(event["say"]))
    path = write_site(tmp_path / "site1", [1])
    message, worker = order(path), SiteWorker(path)
    assert "error" not in json.loads(worker.answer("train", message).text)
    write_site(tmp_path / "site1", [1], 'methods = ["fedper"]')
    assert "does not allow the method 'fedavg'" in json.loads(worker.answer("train", message).text)["error"]
    assert said[-1].startswith("round 1: refused: site1 does not allow the method 'fedavg'")
    path.write_text("name = ")
    assert "error" in json.loads(worker.answer("train", message).text)
    write_site(tmp_path / "site1", [1])
    assert "error" not in json.loads(worker.answer("train", message).text)


def test_messages_that_are_none_do_not_end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("headwise.sites.site.worker.report_event", lambda **event: said.append(event["say"]))
    worker = SiteWorker(write_site(tmp_path / "site1", [1]))
    for text in ("", "{}", "[]", '{"experiment": 3}'):
        for kind in ("train", "query"):
            assert "error" in json.loads(worker.answer(kind, SiteMessage(text, [])).text)
    assert "error" in json.loads(worker.answer("train", SiteMessage('{"experiment": "{"}', [])).text)
    lines = {line.partition(":")[0] for line in said}
    assert lines == {"refused a message that is not an order", "refused an experiment"}
    worker.answer("query.refused", SiteMessage(to_json({"refused": "claims client 1"}), []))
    assert said[-1] == "the server does not use this site: it claims client 1."


def describe(order: dict[str, Any] | None = None, **values: object) -> str:
    """The line about a round in which a client's answer had these values."""
    answer = {"kind": "fit", "n": 120, "samples": 360, "failure": None}
    return describe_order(order or {"site_jobs": [{"t": 2}]}, {"answers": [answer | values]}, 1800)


def test_each_round_has_one_line() -> None:
    assert describe() == "round 2: trained on 120 samples, sent 1.8 KB"
    assert describe(n=1, samples=0) == "round 2: trained, sent 1.8 KB"  # sizes are private here
    assert describe(kind="pre") == "round 2: evaluated, sent 1.8 KB"
    assert describe(failure=["error", "no memory"]) == "round 2: failed (no memory), sent 1.8 KB"
    assert describe_order({"site_jobs": [{"t": 2}]}, {"error": "not here"}, 20) == "round 2: refused: not here"
    assert describe({"stage": "keys", "request": {"t": 2}}) == ""


def test_the_status_says_what_was_done(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "activity.json").write_text(
        to_json({"run": "run-7", "method": "fedper", "data": "synthetic", "round": 2, "rounds": 3, "sent": 3400})
    )
    assert site_status(home).activity == Activity("run-7", "fedper", "synthetic", 2, 3, 3400)
    with pytest.raises(SystemExit) as end:
        main(["site", "status", str(home)])
    assert not end.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "not running"
    assert lines[1].startswith("run-7: fedper on synthetic, round 2 of 3")
    assert lines[2] == "sent 3.4 KB in 0 messages of this run"
    assert lines[3] == "client 1  spent epsilon 0 at delta 1e-05, no limit"


# -- the server's view


class SilentTransport:
    """Nodes that never answer; `here` can be changed while somebody waits."""

    def __init__(self, here: dict[int, NodeSeen]) -> None:
        self.here, self.sent = here, list[tuple[int, str]]()

    def nodes(self) -> dict[int, NodeSeen]:
        return dict(self.here)

    def send(self, node: int, message: SiteMessage, kind: str, seconds: float) -> str:
        self.sent.append((node, kind))
        return f"{node}-{len(self.sent)}"

    def collect(self, numbers: object) -> list[tuple[str, SiteMessage]]:
        return []


def test_who_waits_is_told_for_whom() -> None:
    said: list[str] = []
    transport = SilentTransport(
        {1: NodeSeen("", "cleveland"), 2: NodeSeen("", "hungary"), 3: NodeSeen("", "switzerland")}
    )
    nodes = Nodes(transport, experiment(clients=4), Roster({}, {}), said.append)  # type: ignore[arg-type]
    nodes.registered = frozenset({"cleveland", "hungary", "switzerland", "va"})
    nodes.wait(range(4), 0.01)
    assert said == ["3 of 4 sites are here; va is missing"]
    transport.here[4] = NodeSeen("", "va")
    nodes.wait(range(4), 0.01)
    assert said[1:] == [
        "4 of 4 sites are here; waiting for cleveland, hungary, switzerland, va to introduce themselves"
    ]
    del transport.here[1], transport.here[2], transport.here[3]
    nodes.registered = frozenset({"va"})
    nodes.look()
    assert nodes.describe_wait(range(4), range(4)).endswith("waiting for va to introduce itself")


def test_a_message_to_a_node_that_has_restarted_is_lost() -> None:
    """It would be waited for until it expires: Flower keeps the node's number."""
    transport = SilentTransport({1: NodeSeen("nine o'clock"), 2: NodeSeen("nine o'clock")})
    nodes = Nodes(transport, experiment(), Roster({}, {}, {1: "va"}))  # type: ignore[arg-type]
    answers = nodes.exchange({1: SiteMessage("{}", [])}, None)
    transport.here = {2: NodeSeen("nine o'clock")}
    threading.Timer(0.2, lambda: transport.here.update({1: NodeSeen("ten o'clock")})).start()
    node, lost = next(answers)
    assert (node, lost.why) == (1, "va has restarted")  # type: ignore[union-attr]
    assert (1, "query") in transport.sent, "and it is asked who it is"
