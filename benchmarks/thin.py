"""Thin sites for benchmarks: `python benchmarks/thin.py HOME PORT` makes each client of HOME/thin/site.toml a site.

Each site has a thread with the code of a node, a key and a TLS connection of its own. They share one worker's data and
networks, since a hundred workers would need 30 GB.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from headwise.disk.jsontext import to_json
from headwise.sites.keys import write_node_key
from headwise.sites.server import control
from headwise.sites.site.site import open_site
from headwise.sites.site.site_file import read_site
from headwise.sites.transport.envelope import SiteMessage
from headwise.sites.transport.node import ANSWER_BYTES, NodeConnection, answer_forever, connect, read_site_key

HEARTBEAT = 30.0
"""seconds in which all sites connect: Flower's nodes send heartbeats that often, and all at once they would jam"""


class Worker:
    """What a site's worker does, for many sites at once: one message at a time."""

    def __init__(self, home: Path) -> None:
        self._site = open_site(home / "site.toml")
        self._lock = threading.Lock()

    def answer(self, client: int, kind: str, message: SiteMessage) -> SiteMessage:
        with self._lock:
            reply = self._site.answer(kind, message)
        if kind != "query":
            return reply
        introduction: dict[str, Any] = json.loads(reply.text)
        own = [facts for facts in introduction["facts"] if facts["client"] == client]
        return SiteMessage(to_json({**introduction, "name": f"site{client}", "clients": [client], "facts": own}), [])


def register(server: Path, keys: list[Path]) -> None:
    """As `headwise server register` does, but without starting Flower's command a hundred times."""
    os.environ["FLWR_HOME"] = str(server)  # before Flower is imported
    app, command = (importlib.import_module(f"flwr.cli.{name}") for name in ("app", "supernode.register"))
    answers: list[dict[str, Any]] = []
    vars(command)["print_json_to_stdout"] = answers.append

    def here(home: Path, *arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(app.app, [*arguments, "--format", "json"])
        assert done.exit_code == 0, done.output
        return answers[-1]

    control.run_flwr = here
    for key in keys:
        control.register_site(server, key)


def live(client: int, home: Path, address: str, ca: bytes, worker: Worker) -> None:
    with connect(address, ca, read_site_key(home / f"site{client}")) as callbacks:
        answer_forever(
            NodeConnection(callbacks, lambda kind, message: worker.answer(client, kind, message), lambda: ANSWER_BYTES)
        )


def main(home: Path, port: int) -> None:
    worker = Worker(home / "thin")
    server = home / "server"
    clients = range(len(read_site(home / "thin" / "site.toml").clients))
    for client in clients:
        (home / f"site{client}").mkdir()
        write_node_key(home / f"site{client}" / "site.key", f"site{client}")
    register(server, [home / f"site{client}" / "site.key.pub" for client in clients])
    ca = (server / "ca.crt").read_bytes()
    address = f"127.0.0.1:{port}"
    for client in clients:
        threading.Thread(target=live, args=(client, home, address, ca, worker), daemon=True).start()
        time.sleep(HEARTBEAT / len(clients))
    print("connected", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
