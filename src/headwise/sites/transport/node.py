"""A site's node: talks to Flower's SuperLink in place of a SuperNode, and hands each message to the site's worker.

Run as `python -m headwise.sites.transport.node SETTINGS` by `headwise site start`. A SuperNode starts a process for
each message, or offers it to others at a port of its own: both cost more than the message itself. Flower's connection
and its way of sending objects, used here, are not public: tested with flwr 1.41 and 1.42, and if a name moves, the node
does not start. Without torch.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.app import Error, Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException

from ...disk.files import write_json
from ...errors import HeadwiseError, RunError
from .direct import connection
from .envelope import LARGEST
from .greeting import REMEMBERED, greet, site_key
from .grid import from_content, to_content
from .lifeline import bind, received_secret, tell
from .local import Answers, Courier
from .processes import check_app

QUICK, SLOW, SHARE, TIMES = 0.1, 3.0, 0.2, 10.0
"""seconds between questions to the server: least, most, as a share of the time since the last message, and as a
multiple of the time that the last question took, so that a busy server is asked less"""
RAISED = 2
"""Flower's code for an app that failed"""
LOST = (RunNotRunningException, ObjectPullError, ObjectPushError, httpx.HTTPError)
"""a message that is of no use any more: its run has ended, or the server has forgotten it"""
SLACK = 2 * 10**6
"""bytes that Flower may add to a message; whether the message itself is too large, the worker says"""


class Pace:
    """How long to wait before asking for the next message: a short time while a run is going on."""

    def __init__(self) -> None:
        self._answered = -SLOW / SHARE

    def answered(self) -> None:
        self._answered = time.monotonic()

    def pause(self, took: float) -> float:
        return min(SLOW, max(QUICK, SHARE * (time.monotonic() - self._answered), TIMES * took))


class NodeConnection:
    """Takes messages from the server with Flower's callbacks, and returns the answers of the site's worker."""

    def __init__(self, callbacks: tuple[Any, ...], answer: Answers, largest: Callable[[], int]) -> None:
        self.node, self._receive, self._send, self._run, self._fab, self._pull, self._push, self._confirm = callbacks
        self._answer, self._largest = answer, largest
        self._checked: set[int] = set()
        """runs whose app contains no code"""

    def attend(self) -> bool:
        """Answer the next message; whether there was one. A server that refuses to say ends the node."""
        try:
            if (found := self._receive()) is None:
                return False
        except RunNotRunningException:
            return False
        try:
            begun = time.monotonic()
            self._deliver(self._reply(*found), time.monotonic() - begun)
        except LOST as error:
            logging.getLogger(__name__).warning("a message is lost: %s", error or "its run has ended")
            return False
        return True

    def _reply(self, head: Message, tree: ObjectTree) -> Message:
        head.metadata.__dict__["_message_id"] = tree.object_id
        try:
            self._check(head.metadata.run_id)
            message = self._content(head.metadata.run_id, tree)
            said = self._answer(message.metadata.message_type, from_content(message.content))
            return Message(to_content(said), reply_to=head)
        except LOST:
            raise
        except HeadwiseError as error:
            why = f"{type(error).__name__}: {error}"
        except Exception as error:  # whatever the server sends; an error text may reveal data
            logging.getLogger(__name__).exception("a message failed")
            why = f"{type(error).__name__}: see the site's log"
        return Message(Error(RAISED, why), reply_to=head)

    def _content(self, run: int, tree: ObjectTree) -> Message:
        """The message, piece by piece; one that is too large is not fetched to its end."""
        most, sizes = self._largest() + SLACK, list[int]()

        def pull(number: str) -> bytes:
            piece = self._pull(run, number)
            sizes.append(len(piece))
            if sum(sizes) > most:
                raise RunError(f"this site accepts messages of at most {most - SLACK:,} bytes, but this one has more.")
            return piece

        return pull_and_inflate_object_from_tree(tree, pull, partial(self._confirm, run), return_type=Message)

    def _check(self, run: int) -> None:
        if run not in self._checked:
            check_app(self._fab(self._run(run).fab_hash, run).content)
            self._checked.add(run)

    def _deliver(self, reply: Message, seconds: float) -> None:
        run = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            wanted, session = self._send(reply, get_object_tree(reply), seconds)
            push_objects(get_all_nested_objects(reply), partial(self._push, run, session), object_ids_to_push=wanted)


class _Connection(logging.Filter):
    """Reports when Flower loses the server, and finds it again."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith("Connection attempt failed"):
            tell(lost=True)
        elif text.startswith("Connection successful"):
            tell(back=True)
        return True


def largest(home: Path) -> int:
    """Bytes of a message that the site accepts now; without torch, which reading the whole file needs."""
    return tomllib.loads((home / "site.toml").read_text()).get("allow", {}).get("largest", LARGEST) * 10**6


def attend(node: NodeConnection) -> NoReturn:
    """Answer messages until the process ends."""
    pace = Pace()
    while True:
        asked = time.monotonic()
        if node.attend():
            pace.answered()
        else:
            time.sleep(pace.pause(time.monotonic() - asked))


def main() -> None:
    bind()
    secret = received_secret()
    settings: Mapping[str, Any] = json.loads(sys.argv[1])
    home, address = Path(settings["home"]), settings["superlink"]
    ca = None if settings["ca"] is None else Path(settings["ca"]).read_bytes()
    try:
        refused = None if ca is None else greet(address, ca, home)
    except HeadwiseError as error:
        refused = {"wrong": str(error)}
    if refused:
        tell(**refused)
        sys.exit(1)
    logging.getLogger("flwr").addFilter(_Connection())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the connection then tells the server that it ends
    os.chdir(home)  # for the socket's short name
    with connection(address, ca, None if ca is None else site_key(home)) as callbacks:
        node = NodeConnection(callbacks, Courier(secret).ask, partial(largest, home))
        write_json(home / REMEMBERED, {"node": node.node})
        tell(connected=node.node)
        attend(node)


if __name__ == "__main__":
    main()
