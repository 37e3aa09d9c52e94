"""`--health`: what monitors see of a site or a server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from laboratory import free_port

from headwise.errors import ConfigError
from headwise.sites.server import control
from headwise.sites.site import running, worker
from headwise.sites.transport import superlink
from headwise.sites.transport.supervisor import Health, serve_health
from waiting import PATIENCE


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def site(home: Path) -> running.RunningSite:
    found = running.RunningSite(home, "localhost:1", None, None, print)
    found._status = {"connected": None, "why": "is starting"}
    return found


def test_a_site_is_well_while_it_is_connected(tmp_path: Path) -> None:
    port, here = free_port(), site(tmp_path)
    with serve_health(port, here.check_health):
        assert get(port, "/healthz") == (503, "not connected: is starting\n")
        here._update_status(connected="2026-01-01", why=None)
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/")[0] == 404
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")


def test_metrics_are_what_the_worker_did(tmp_path: Path) -> None:
    port, here = free_port(), site(tmp_path)
    (tmp_path / worker.ACTIVITY).write_text(json.dumps({"round": 2, "rounds": 3, "messages": 5, "sent": 1740}))
    with serve_health(port, here.check_health):
        code, text = get(port, "/metrics")
    assert code == 200
    figures = dict(re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE))
    names = ("healthy", "site_round", "site_rounds", "site_messages", "site_sent")
    assert figures == dict(zip((f"headwise_{n}" for n in names), ("0", "2", "3", "5", "1740"), strict=True))
    assert text.count("# TYPE ") == text.count("# HELP ") == len(figures)


def test_a_server_is_well_once_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, seen = free_port(), list[tuple[int, str]]()

    def listens(*_: object) -> bool:
        seen.append(get(port, "/healthz"))
        return True

    def say(line: str) -> None:
        if line.startswith("listens"):
            seen.append(get(port, "/healthz"))
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(superlink, "_bind_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(1000)"])
    monkeypatch.setattr(superlink, "is_listening", listens)
    assert control.run_server(tmp_path, "127.0.0.1", free_port(), True, say, port) == 0
    assert seen == [(503, "does not listen yet\n"), (200, "ok\n")]


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "PORT_SECONDS", 0.0)
    port = free_port()
    with (
        serve_health(port, lambda: Health("")),
        pytest.raises(ConfigError, match=f"--health is {port}, but"),
        serve_health(port, lambda: Health("")),
    ):
        pass
