"""Flower's side of a node's connection, in this process: messages that wait, and the answers that come."""

from __future__ import annotations

import io
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from headwise.sites.server.control import APP
from headwise.sites.transport.envelope import AnswerMessage, SiteMessage
from headwise.sites.transport.grid import to_content
from headwise.sites.transport.node import NodeConnection
from headwise.sites.transport.superlink import APPS


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks who sends a message."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class SuperLink:
    """Flower's side of a node's connection: messages to be fetched piece by piece, and the answers."""

    def __init__(self, *waiting: SiteMessage, app: str = APP) -> None:
        self.waiting = [Message(to_content(each), dst_node_id=7, message_type="train") for each in waiting]
        self.objects: dict[str, bytes] = {}
        self.apps = self.pulled = 0
        self.announced = ""
        self._app, self._sent = app, dict[str, bytes]()

    def callbacks(self) -> tuple[Any, ...]:
        return 7, self.receive, self.send, self.run, self.fab, self.pull, self.push, lambda run, number: None

    def receive(self) -> tuple[Message, Any] | None:
        if not self.waiting:
            return None
        message = self.waiting.pop(0)
        self.objects = {k: each.deflate() for k, each in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        self.announced = tree.object_id
        return message, tree

    def pull(self, run: int, number: str) -> bytes:
        self.pulled += len(self.objects[number])
        return self.objects[number]

    def send(self, reply: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        self._head = tree.object_id
        return {*get_all_nested_objects(reply)}, "session"

    def push(self, run: int, session: str, number: str, content: bytes) -> None:
        self._sent[number] = content

    def run(self, run: int) -> SimpleNamespace:
        self.apps += 1
        return SimpleNamespace(fab_hash="hash")

    def fab(self, name: str, run: int) -> SimpleNamespace:
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as file:
            file.writestr("pyproject.toml", self._app.format(order='""', **APPS))
        return SimpleNamespace(content=bundle.getvalue())

    def answer(self) -> Message:
        """The answer that was sent last."""
        found = inflate_object_from_contents(self._head, {**self._sent})
        assert isinstance(found, Message)
        return found


def connected(link: SuperLink, answer: AnswerMessage, largest: int = 10**9) -> NodeConnection:
    return NodeConnection(link.callbacks(), answer, lambda: largest)


def echo(kind: str, message: SiteMessage) -> SiteMessage:
    return SiteMessage(f"{kind}: {message.text}", [each[::-1] for each in message.records])
