"""A site's node: what the server's refusals mean, and how often it asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import httpx
import pytest
from flwr.supercore.error import ApiErrorCode

from headwise.disk.jsontext import to_json
from headwise.sites.transport import node
from headwise.sites.transport.node import SLOW, Pace, refusal
from waiting import PATIENCE


def refused(status: int, code: int | None = None) -> tuple[str, bool]:
    text = "" if code is None else to_json({"code": code, "detail": "1.41.0 and 1.40.0"})
    request = httpx.Request("POST", "https://server.example/v1/fleet/activate-node")
    found = refusal(httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, text=text)))
    return found["why"], found["lasting"]


def test_each_refusal_has_its_sentence() -> None:
    why, lasting = refused(412, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
    assert why.startswith("the server does not know this site's key")
    assert "headwise server register" in why
    assert not lasting
    why, lasting = refused(426, ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE)
    assert why == "this site's version of Flower does not fit the server's: 1.41.0 and 1.40.0"
    assert lasting
    assert refused(401) == ("the server does not accept this site's signature: check both clocks.", False)
    assert refused(500) == ("the server refuses this site: no", False)


def test_a_node_asks_often_during_a_run_and_seldom_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [1000.0], list[float]()
    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", slept.append)
    pace = Pace()
    pace.sleep(3)
    assert slept == [SLOW], "as Flower does while nothing happens"
    pace.sleep(0.5)
    assert slept[1] < 0.1, "an answer within this process is looked for at once"
    for seconds, pause in ((0.0, 0.1), (10.0, 1.0), (60.0, 3.0)):
        now[0] = 1000.0 + seconds
        pace.sleep(3)
        assert slept[-1] == pytest.approx(pause)


def test_a_message_that_never_arrives_as_a_whole_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run has ended while it was on the way."""
    tokens, stuck, done = ["stuck", "good"], threading.Event(), threading.Event()

    class Client:
        def AcquireTask(self, asked: object) -> SimpleNamespace:
            return SimpleNamespace(token=tokens.pop(0) if tokens else "")

    def do(address: str, token: str, answer: object) -> None:
        stuck.wait() if token == "stuck" else done.set()

    monkeypatch.setattr(node.RuntimeHttpClient, "from_server_address", lambda *_: Client())
    monkeypatch.setattr(node, "_do", do)
    work = ("127.0.0.1:1", b"secret", lambda kind, message: message, Pace())
    threading.Thread(target=node.serve_tasks, args=work, daemon=True).start()
    assert done.wait(PATIENCE)
    stuck.set()
