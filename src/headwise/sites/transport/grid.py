"""Messages over Flower's public API, which no other file imports; its private API is in `node`.

Tested with flwr 1.41 and 1.42.
A `SiteMessage` travels as a ConfigRecord. Large records are in an ArrayRecord beside it, which Flower sends in chunks
of 5 MB. Every piece is a request of its own, so small records get none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ...errors import RunError
from .envelope import AnswerMessage, Lost, NodeSeen, SiteMessage

POLL_SECONDS = 0.02
"""between looks for replies, within this process"""
ONE_PIECE_BYTES = 500_000
"""most bytes of all records of a message that is sent in one piece"""
EXPIRED = 3
"""Flower's error code for a message without a reply in time"""
APP_FAILED = 2
"""Flower's error code for an app that failed"""


def client_app(open_site: Callable[[Mapping[str, Any]], AnswerMessage]) -> ClientApp:
    """The app of a node, whose own configuration says which site to open."""
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        answer = open_site(context.node_config)
        return answer_message(message, answer, message)

    app.train()(reply)
    app.query()(reply)
    return app


class Simulation:
    """Flower's simulation engine with `nodes` virtual nodes; runs in a thread until closed."""

    def __init__(self, app: ClientApp, nodes: int, backend: Mapping[str, Any]) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # the caller reports failures
        from ray._private import worker as ray_worker  # imported here because deployments run without Ray

        ray_worker._worker_logs_enabled = False  # the only way to stop Ray printing to stdout when an actor dies
        self._app = app
        self._count = nodes
        self._backend = dict(backend)
        self._begin()

    def node_of(self, client: int) -> int:
        """The client's node, round-robin: any node can serve any client."""
        return self._nodes[client % len(self._nodes)]

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        waiting: dict[str, int] = {}
        for node, message in messages.items():
            if number := self._transport.send(node, message, "train", seconds):
                waiting[number] = node
            else:
                yield node, Lost(f"node {node} is not connected")
        while waiting and self._thread.is_alive():
            for number, reply in self._transport.collect(list(waiting)):
                yield waiting.pop(number), reply
            time.sleep(POLL_SECONDS)
        for node in waiting.values():
            yield node, Lost(f"Flower's simulation has ended: {self._why}")

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        """Restart: Ray keeps sending work to an actor that died, and all of it fails."""
        self.close()
        self._begin()

    def close(self) -> None:
        """Stops Ray as well."""
        self._over.set()
        self._thread.join()

    def _begin(self) -> None:
        self._over = threading.Event()
        self._handed = Queue[Grid | None]()
        self._why = "it stopped"
        self._thread = threading.Thread(target=self._run_nodes, daemon=True)
        self._thread.start()
        grid = self._handed.get()
        if grid is None:
            raise RunError(f"Flower's simulation can't start: {self._why}.")
        self._transport = FlowerTransport(grid)
        while self._thread.is_alive() and len(self._transport.nodes()) < self._count:
            time.sleep(POLL_SECONDS)
        self._nodes = sorted(self._transport.nodes())

    def _run_nodes(self) -> None:
        from flwr.simulation import run_simulation

        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._handed.put(grid)
            self._over.wait()

        try:
            run_simulation(server, self._app, self._count, backend_config=self._backend)
        except (Exception, SystemExit) as error:
            while error.__cause__ is not None:  # Flower wraps the cause several times
                error = error.__cause__
            self._why = f"{type(error).__name__}: {error}"
        finally:
            self._handed.put(None)
            self._over.set()  # or `main` above would wait forever


class FlowerTransport:
    """Messages between a SuperLink and its SuperNodes."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> dict[int, NodeSeen]:
        return {n.node_id: NodeSeen(n.last_activated_at, n.name) for n in self._grid.get_nodes()}

    def send(self, node: int, message: SiteMessage, kind: str, seconds: float | None = None) -> str | None:
        outgoing = Message(to_content(message), dst_node_id=node, message_type=kind, ttl=seconds)
        # one at a time: Flower returns no id for a node that is gone, and does not say which one that was
        return next((number for number in self._grid.push_messages([outgoing]) if number), None)

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage | Lost]]:
        replies: list[tuple[str, SiteMessage | Lost]] = []
        for reply in self._grid.pull_messages(list(numbers)):
            number = reply.metadata.reply_to_message_id  # not the sender: for an error, that is not the node
            if reply.has_error():
                reason = "late" if reply.error.code == EXPIRED else "no answer"
                replies.append((number, Lost(f"{reply.error.reason} (Flower's code {reply.error.code})", reason)))
                continue
            try:
                replies.append((number, from_content(reply.content)))
            except RunError as error:
                replies.append((number, Lost(str(error))))
        return replies


def server_app(serve: Callable[[FlowerTransport, dict[str, Any]], None]) -> ServerApp:
    """The app of a run's server; `serve` gets the transport and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(FlowerTransport(grid), dict(context.run_config))

    return app


def answer_message(message: Message, answer: AnswerMessage, head: Message) -> Message:
    """The reply to a message; `head` has its number, which a message that was fetched by itself lacks."""
    content = answer(message.metadata.message_type, from_content(message.content))
    return Message(to_content(content), reply_to=head)


def refuse_message(message: Message, why: str) -> Message:
    return Message(Error(APP_FAILED, why), reply_to=message)


def to_content(message: SiteMessage) -> RecordDict:
    if sum(map(len, message.records)) <= ONE_PIECE_BYTES:
        return RecordDict({"message": ConfigRecord({"text": message.text, "records": [*message.records]})})
    arrays = {str(k): Array("uint8", (len(data),), "safetensors", data) for k, data in enumerate(message.records)}
    return RecordDict({"message": ConfigRecord({"text": message.text}), "records": ArrayRecord(arrays)})


def from_content(content: RecordDict) -> SiteMessage:
    """The inverse; a `RunError` if this is not one of our messages, since anybody may run a site."""
    try:
        values: dict[str, Any] = dict(content.config_records["message"])
        if "records" not in values:
            arrays = content.array_records["records"]
            values["records"] = [arrays[str(k)].data for k in range(len(arrays))]
        text = values["text"]
        records = values["records"]
        if not isinstance(text, str) or not all(isinstance(data, bytes) for data in records):
            raise TypeError("text or records of another type")
    except (KeyError, TypeError) as error:
        raise RunError(f"this is not a message of Headwise: {error}.") from error
    return SiteMessage(text, records)
