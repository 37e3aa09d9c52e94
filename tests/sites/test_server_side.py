"""The server's commands: who is registered and here, what deploy tells while it waits, and why a server has stopped."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import LocalTransport, experiment, run_deployment, write_site
from laboratory import free_port

from headwise.cli import main
from headwise.disk.files import write_json
from headwise.errors import ConfigError, RunError
from headwise.sites.keys import write_node_key
from headwise.sites.server import control
from headwise.sites.transport import superlink
from headwise.sites.transport.superlink import is_listening
from headwise.sites.transport.supervisor import STATUS, claim_folder


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """As if a server ran in this folder."""
    home.mkdir()
    with claim_folder(home, "server"):
        write_json(home / STATUS, {"pid": 1, "address": "127.0.0.1:8000", "since": "2026-01-02T09:00:00+00:00"})
        yield


def ran(folder: Path) -> Path:
    """A run of two rounds with two sites."""
    sites = {k: write_site(folder / name, clients) for k, (name, clients) in enumerate({"a": [0], "b": [1]}.items(), 1)}
    run_deployment(
        LocalTransport(sites), experiment("fedavg", clients=2, rounds=2, sampling={"ratio": 1.0}), folder / "run"
    )
    return folder / "run"


def test_a_client_that_two_sites_claim_is_refused_with_both_names(tmp_path: Path) -> None:
    transport = LocalTransport({1: write_site(tmp_path / "oslo", [0]), 2: write_site(tmp_path / "rome", [0, 1])})
    with pytest.raises(RunError, match="client 0 is claimed by oslo and by rome: each client must have one site"):
        run_deployment(transport, experiment("fedavg", clients=2), tmp_path / "run")
    assert [(node, kind) for node, kind, _ in transport.sent if kind != "query"] == [(2, "query.refused")], (
        "rome is told"
    )
    assert not (tmp_path / "run").exists()


def test_a_key_that_is_registered_already_does_not_end_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flower(home: Path, *words: str) -> dict[str, Any]:
        if "oslo" in words:
            raise RunError("flwr supernode failed: Public key already in use")
        return {"node-id": 17}

    monkeypatch.setattr(control, "run_flwr", flower)
    for name in ("oslo", "rome"):
        (tmp_path / name).mkdir()
        write_node_key(tmp_path / name / "site.key", name)
    keys = [str(tmp_path / name / "site.key.pub") for name in ("oslo", "rome")]
    home = tmp_path / "server"
    with serving(home), pytest.raises(SystemExit) as end:
        main(["server", "register", str(home), *keys])
    assert not end.value.code
    assert capsys.readouterr().out == f"oslo ({keys[0]}) is already registered\nregistered rome ({keys[1]})\n"
    assert control._site_names(home) == {"17": "rome"}
    with pytest.raises(RunError, match="does not run: start it with headwise server start"):
        control.register_site(home, Path(keys[0]))
    (tmp_path / "no.pub").write_text("ssh-rsa nonsense")
    with serving(tmp_path / "again"), pytest.raises(ConfigError, match=r"no.pub is not a public key: give the site"):
        control.register_site(tmp_path / "again", tmp_path / "no.pub")


def test_a_server_that_is_refused_changes_nothing_of_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "PORT_SECONDS", 0.0)
    home = tmp_path / "server"
    with serving(home):
        before = sorted(path.name for path in home.iterdir())
        with pytest.raises(RunError, match="is already running"):
            control.run_server(home, "127.0.0.1", free_port(), False, print, certify=pytest.fail)
        assert sorted(path.name for path in home.iterdir()) == before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port is"):
            control.run_server(home, "127.0.0.1", taken.getsockname()[1], False, print, certify=pytest.fail)
    assert not (home / "config.toml").exists()


def test_the_status_says_who_is_here_and_how_far_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        {"node-id": "17", "status": "online", "online-at": "2026-01-02 10:00:00Z", "offline-at": "N/A"},
        {"node-id": "18", "status": "offline", "online-at": "N/A", "offline-at": "N/A"},
        {"node-id": "19", "status": "online", "online-at": "2026-01-01 10:00:00Z", "offline-at": "N/A"},
    ]
    monkeypatch.setattr(control, "run_flwr", lambda *words: {"nodes": nodes})
    home, out = tmp_path / "server", ran(tmp_path)
    with serving(home):
        write_json(home / "sites.json", {"17": "rome", "18": "oslo", "19": "lima"})
        write_json(home / control.LATEST, {"out": str(out)})
        with pytest.raises(SystemExit):
            main(["server", "status", str(home)])
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "running at 127.0.0.1:8000 since 2026-01-02 09:00:00 UTC"
        assert lines[1:3] == ["  rome  connected since 2026-01-02 10:00:00 UTC", "  oslo  has never connected"]
        assert lines[3] == "  lima  connected since 2026-01-02 09:00:00 UTC"  # it came back when the server did
        assert lines[4] == f"{out}: round 2 of 2, finished"
        with pytest.raises(SystemExit):
            main(["server", "status", str(home), "--json"])
        site = json.loads(capsys.readouterr().out)["sites"][0]
        assert site == {"name": "rome", "here": True, "since": "2026-01-02T10:00:00+00:00"}
    assert next(control.server_status(home).lines()) == "not running"


def test_deploy_tells_what_the_server_says_and_each_round(tmp_path: Path) -> None:
    out = ran(tmp_path)
    told: list[str] = []
    control.progress_file(out).write_text('{"line": "1 of 2 sites are here; b is missing"}\n')
    follower = control.Follower(out, told.append, rounds=1)
    assert follower.look() is None
    with control.progress_file(out).open("a") as file:
        file.write('{"ended": "client 1 gave no answer"}\n')
    assert follower.look() == follower.look() == "client 1 gave no answer"
    assert told[0] == "1 of 2 sites are here; b is missing"
    assert [line.split(",")[0] for line in told[1:]] == ["round 2: 2 of 2 clients"], "each once, and none of before"


@pytest.mark.parametrize("seldom", [40, 1], ids=["between questions", "in a question"])
def test_deploy_does_not_wait_for_a_server_that_has_stopped(
    seldom: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, told = tmp_path / "server", list[str]()
    living = [{"pid": 1}]

    def flower(home: Path, *words: str) -> dict[str, Any]:
        if words[0] == "run":
            return {"run-id": 4}
        raise RunError("flwr list failed: Connection to the SuperLink is unavailable.")

    monkeypatch.setattr(control, "read_status", lambda _: living.pop() if living else None)
    monkeypatch.setattr(control, "run_flwr", flower)
    monkeypatch.setattr(control, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(control, "POLLS_PER_QUERY", seldom)
    home.mkdir()
    with pytest.raises(RunError, match=r"the server in .* has stopped: start it again, then run this command again"):
        control.submit(home, experiment(), tmp_path / "run", 1.0, told.append)
    assert told == ["the run is submitted; its server starts"]
    with pytest.raises(RunError, match="does not run: start it with headwise server start"):
        control.submit(home, experiment(), tmp_path / "run", 1.0, told.append)


def test_a_server_whose_part_ends_stops_as_a_whole_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(*command: str) -> list[str]:
        return [
            sys.executable,
            "-c",
            "raise SystemExit(3)" if "superexec" in command[0] else "import time; time.sleep(1000)",
        ]

    monkeypatch.setattr(superlink, "_bind_command", child)
    with pytest.raises(
        RunError, match=r"flower-superexec ended with code 3, so the server has stopped: see .*flower.log"
    ):
        control.run_server(tmp_path, "127.0.0.1", free_port(), True, print)
    assert not (tmp_path / STATUS).exists()


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_server_that_listens_is_noticed(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as line:
        line.bind((host, 0))
        port = line.getsockname()[1]
        assert not is_listening(host, port)
        line.listen()
        assert is_listening(host, port)
