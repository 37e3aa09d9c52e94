"""Flower's API, all of it that we use: the one file to touch when it moves.

Tested with flwr 1.41. Every message is a `Parcel`: its text in a ConfigRecord, its records as bytes in an ArrayRecord,
which Flower sends in pieces of 5 MB.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import Queue
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from ray._private import worker as ray_worker

from ..errors import RunError
from .wire import Lost, Parcel

PAUSE = 0.02
"""seconds between two looks for replies, in this process"""
LONG = 0.5
"""the same, where each look is a request to a SuperLink"""


def client_app(answer: Callable[[Parcel], Parcel]) -> ClientApp:
    """A node that answers every message with this function."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(_to_content(answer(_from_content(message.content))), reply_to=message)

    return app


class Simulation:
    """Flower's simulation engine with so many virtual nodes, kept running in a thread until it is closed."""

    def __init__(self, app: ClientApp, nodes: int, backend: Mapping[str, Any]) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong is said by whoever called
        ray_worker._worker_logs_enabled = False  # no setting keeps Ray from telling stdout that an actor died
        self._count, self._backend = nodes, dict(backend)
        self._over, self._handed = threading.Event(), Queue[Grid | None]()
        self._why = "it ended"
        self._thread = threading.Thread(target=self._live, args=(app,), daemon=True)
        self._thread.start()
        found = self._handed.get()
        if found is None:
            raise RunError(f"Flower's simulation can't start: {self._why}.")
        self._grid = found
        while self._thread.is_alive() and len(list(found.get_node_ids())) < nodes:
            time.sleep(PAUSE)
        self._nodes = sorted(found.get_node_ids())

    def node_of(self, client: int) -> int:
        """Clients are dealt to the nodes in turn; any node can have any client."""
        return self._nodes[client % len(self._nodes)]

    def exchange(self, parcels: Mapping[int, Parcel]) -> Iterator[Parcel | Lost]:
        """Send each node its message; the replies in the order in which they come."""
        waiting = dict[str, int]()
        yield from _send(self._grid, parcels, "train", waiting)
        while waiting and self._thread.is_alive():
            yield from (parcel for _, parcel in _replies(self._grid, waiting))
            time.sleep(PAUSE)
        yield from (Lost(f"Flower's simulation is gone: {self._why}") for _ in waiting)

    def close(self) -> None:
        """End it, and Ray with it."""
        self._over.set()
        self._thread.join()

    def _live(self, app: ClientApp) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._handed.put(grid)
            self._over.wait()

        try:
            run_simulation(server, app, self._count, backend_config=self._backend)
        except (Exception, SystemExit) as error:
            while error.__cause__ is not None:  # Flower wraps what went wrong more than once
                error = error.__cause__
            self._why = f"{type(error).__name__}: {error}"
        finally:
            self._handed.put(None)
            self._over.set()  # or the thread of the app above would wait for ever


class Nodes:
    """The SuperNodes of a run, as its server sees them: each says which clients it has."""

    def __init__(self, grid: Grid, clients: int, ttl: float) -> None:
        self._grid, self._ttl = grid, ttl
        self._homes: dict[int, int] = {}
        until = time.monotonic() + ttl
        asked: set[int] = set()
        waiting = dict[str, int]()
        while len(self._homes) < clients:
            if time.monotonic() > until:
                missing = [c for c in range(clients) if c not in self._homes]
                raise RunError(f"no site has come for the clients {missing} within {ttl:g} seconds.")
            new = set(grid.get_node_ids()) - asked
            asked |= new
            list(_send(grid, dict.fromkeys(new, Parcel("", [])), "query", waiting, ttl))
            for node, reply in _replies(grid, waiting):
                if isinstance(reply, Parcel):
                    self._homes |= dict.fromkeys(json.loads(reply.text), node)
            time.sleep(LONG)

    def node_of(self, client: int) -> int:
        """The node that said so."""
        return self._homes[client]

    def exchange(self, parcels: Mapping[int, Parcel]) -> Iterator[Parcel | Lost]:
        """Send each node its message; the replies in the order in which they come."""
        waiting = dict[str, int]()
        yield from _send(self._grid, parcels, "train", waiting, self._ttl)
        while waiting:
            yield from (parcel for _, parcel in _replies(self._grid, waiting))
            time.sleep(LONG)

    def close(self) -> None:
        """Nothing to give back: the nodes stay."""


def node_app(opened: Callable[[str], tuple[Callable[[Parcel], Parcel], list[int]]]) -> ClientApp:
    """The app of a SuperNode, whose configuration names its site's file; asked who it is, it says its clients."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        answer, _ = opened(str(context.node_config["site"]))
        return Message(_to_content(answer(_from_content(message.content))), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        _, clients = opened(str(context.node_config["site"]))
        return Message(_to_content(Parcel(json.dumps(clients), [])), reply_to=message)

    return app


def server_app(serve: Callable[[Callable[[int, float], Nodes], dict[str, Any]], None]) -> ServerApp:
    """The app of a run's server; `serve` gets a way to the nodes, and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(partial(Nodes, grid), dict(context.run_config))

    return app


def _send(
    grid: Grid, parcels: Mapping[int, Parcel], kind: str, waiting: dict[str, int], ttl: float | None = None
) -> Iterator[Lost]:
    """Send each node its message; those that could not be sent."""
    for node, parcel in parcels.items():
        # one by one: of a node that is gone, Flower gives back no id, and does not say whose is missing
        message = Message(_to_content(parcel), dst_node_id=node, message_type=kind, ttl=ttl)
        ids = [found for found in grid.push_messages([message]) if found]
        if ids:
            waiting[ids[0]] = node
        else:
            yield Lost(f"node {node} is not there")


def _replies(grid: Grid, waiting: dict[str, int]) -> Iterator[tuple[int, Parcel | Lost]]:
    """What has come, taken off the list of what is waited for."""
    for reply in grid.pull_messages(list(waiting)):
        node = waiting.pop(reply.metadata.reply_to_message_id)  # an error's sender is not the node
        if reply.has_error():
            yield node, Lost(f"node {node}: {reply.error.reason} (Flower's code {reply.error.code})")
        else:
            yield node, _from_content(reply.content)


def _to_content(parcel: Parcel) -> RecordDict:
    arrays = {str(k): Array("uint8", (len(data),), "safetensors", data) for k, data in enumerate(parcel.records)}
    return RecordDict({"text": ConfigRecord({"text": parcel.text}), "records": ArrayRecord(arrays)})


def _from_content(content: RecordDict) -> Parcel:
    records = content.array_records["records"]
    text = content.config_records["text"]["text"]
    return Parcel(str(text), [records[str(k)].data for k in range(len(records))])
