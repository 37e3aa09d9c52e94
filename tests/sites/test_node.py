"""A site's node: how a message comes in and its answer goes out, what refusals mean, how often it asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import RunNotRunningException
from superlink import SuperLink, connected, echo, identity  # noqa: F401 (the last is a fixture)

from headwise.disk.jsontext import to_json
from headwise.errors import RunError
from headwise.sites.server.control import APP
from headwise.sites.transport import node
from headwise.sites.transport.envelope import Lost, SiteMessage
from headwise.sites.transport.grid import FlowerTransport, client_app, from_content, to_content
from headwise.sites.transport.node import Pace, explain_refusal


def refused(status: int, code: int | None = None) -> tuple[str, bool]:
    text = "" if code is None else to_json({"code": code, "detail": "1.41.0 and 1.40.0"})
    request = httpx.Request("POST", "https://server.example/v1/fleet/activate-node")
    found = explain_refusal(httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, text=text)))
    return found.why, found.lasting


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
    now = [1000.0]
    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    pace = Pace()
    assert pace.pause(0.0) == Pace.MOST, "as Flower does while nothing happens"
    pace.note_answer()
    assert pace.pause(0.005) == Pace.LEAST
    assert pace.pause(0.05) == pytest.approx(0.5), "a busy server is asked less"
    for seconds, pause in ((0.5, 0.1), (5.0, 1.0), (60.0, 3.0)):
        now[0] = 1000.0 + seconds
        assert pace.pause(0.005) == pytest.approx(pause)


@pytest.mark.parametrize("records", [[], [b"", b"\0\1"], [bytes(range(256)) * 9000]], ids=["none", "small", "large"])
def test_a_message_and_its_answer_pass_bit_for_bit(records: list[bytes]) -> None:
    link = SuperLink(SiteMessage("one", records), SiteMessage("two", records))
    line = connected(link, echo)
    assert line.answer_next()
    assert from_content(link.answer().content) == ("train: one", [each[::-1] for each in records])
    assert link.answer().metadata.reply_to_message_id == link.announced, "or the server waits forever"
    assert line.answer_next()
    assert from_content(link.answer().content).text == "train: two"
    assert not line.answer_next(), "nobody asks any more"
    assert link.apps == 1, "an app is fetched once per run"


def test_a_virtual_node_answers_the_same_messages() -> None:
    app = client_app(lambda config: lambda kind, message: echo("virtual", message))
    context: Any = SimpleNamespace(node_config={})
    for records in ([b"ab"], [bytes(10**6)]):
        message = Message(to_content(SiteMessage("one", records)), dst_node_id=7, message_type="train")
        assert from_content(app(message, context).content) == ("virtual: one", [each[::-1] for each in records])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"text": "{}"},
        {"text": 3, "records": []},
        {"text": "", "records": 10**12},
        {"text": "", "records": [10**12]},
    ],
    ids=str,
)
def test_a_reply_that_is_no_message_is_a_lost_one(said: Any) -> None:
    reply = SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id="one"),
        has_error=lambda: False,
        content=RecordDict({"message": ConfigRecord(said)}),
    )
    grid: Any = SimpleNamespace(pull_messages=lambda numbers: [reply])
    ((number, lost),) = FlowerTransport(grid).collect(["one"])
    assert number == "one"
    assert isinstance(lost, Lost)
    assert lost.why.startswith("this is not a message of Headwise")


def test_a_small_message_has_few_pieces() -> None:
    """Each is a request to the server, on both ways."""
    small, large = (to_content(SiteMessage("text", [bytes(size)] * 3)) for size in (1000, 10**6))
    assert len(get_all_nested_objects(small)) == 2
    assert len(get_all_nested_objects(large)) > 4, "which can be sent side by side"


@pytest.mark.parametrize("when", ["pull", "run", "send"])
def test_a_message_whose_run_has_ended_holds_up_no_other(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*asked: object) -> None:
        raise RunNotRunningException

    link = SuperLink(SiteMessage("stale", []), SiteMessage("fresh", []))
    with monkeypatch.context() as patched:
        patched.setattr(link, when, ended)
        line = connected(link, echo)
        assert not line.answer_next()
    line = connected(link, echo)
    assert line.answer_next()
    assert from_content(link.answer().content).text == "train: fresh"


def test_a_server_that_refuses_to_say_ends_the_node() -> None:
    """It is started again, and greets: that tells why."""

    def refuses() -> None:
        raise httpx.HTTPStatusError("no", request=httpx.Request("POST", "https://a"), response=httpx.Response(404))

    link = SuperLink()
    link.receive = refuses  # type: ignore[method-assign,assignment]
    with pytest.raises(httpx.HTTPStatusError):
        connected(link, echo).answer_next()


def test_an_app_with_code_is_never_answered() -> None:
    asked: list[str] = []
    link = SuperLink(SiteMessage("one", []), app=APP.replace("{clientapp}", "evil:app"))
    connected(link, lambda kind, message: asked.append(kind) or message).answer_next()
    assert "this site only runs its own Headwise, but the app names" in link.answer().error.reason
    assert not asked


def test_a_worker_that_fails_is_an_error_of_the_site() -> None:
    def dies(kind: str, message: SiteMessage) -> SiteMessage:
        raise RunError("the site's worker died 3 times of one message: its log says more.")

    link = SuperLink(SiteMessage("one", []))
    assert connected(link, dies).answer_next()
    assert link.answer().error.reason.startswith("RunError: the site's worker died")
