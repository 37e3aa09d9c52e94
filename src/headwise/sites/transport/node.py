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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.error import ApiErrorCode, FlowerError
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
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ...disk.files import read_json, write_json
from ...errors import HeadwiseError
from .grid import from_content, to_content
from .lifeline import bind, received_secret, tell
from .local import Answers, Courier
from .processes import check_app

QUICK, SLOW, SHARE, TIMES = 0.1, 3.0, 0.2, 10.0
"""seconds between questions to the server: least, most, as a share of the time since the last message, and as a
multiple of the time that the last question took, so that a busy server is asked less"""
NOTICED = 2.0
"""seconds for the server to notice that a node was away"""
RAISED = 2
"""Flower's code for an app that failed"""
REMEMBERED = "node.json"
LOST = (RunNotRunningException, ObjectPullError, ObjectPushError, httpx.HTTPError)
"""a message that is of no use any more: its run has ended, or the server has forgotten it"""


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

    def __init__(self, callbacks: tuple[Any, ...], answer: Answers) -> None:
        self.node, self._receive, self._send, self._run, self._fab, self._pull, self._push, self._confirm = callbacks
        self._answer = answer
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
            message, begun = self._content(*found), time.monotonic()
            self._deliver(self._reply(message), time.monotonic() - begun)
        except LOST as error:
            logging.getLogger(__name__).warning("a message is lost: %s", error or "its run has ended")
            return False
        return True

    def _content(self, head: Message, tree: ObjectTree) -> Message:
        run = head.metadata.run_id
        pull, confirm = partial(self._pull, run), partial(self._confirm, run)
        message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = tree.object_id  # which it does not contain
        return message

    def _reply(self, message: Message) -> Message:
        try:
            self._check(message.metadata.run_id)
            said = self._answer(message.metadata.message_type, from_content(message.content))
            return Message(to_content(said), reply_to=message)
        except Exception as error:
            if not isinstance(error, HeadwiseError):
                logging.getLogger(__name__).exception("a message failed")
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)

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


class _FlowerVersion:
    """Tells the server Flower's version; unlike Flower's own, ends nothing."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update(dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()))
        return call_next(context)


def site_key(home: Path) -> Any:
    return load_ssh_private_key((home / "site.key").read_bytes(), None)


def greet(address: str, ca: bytes, home: Path) -> dict[str, Any] | None:
    """Whether the server lets this site in: None, or why not.

    Flower refuses a key that is already connected, and takes a minute to notice that its node was killed. The site
    itself knows that its last node is gone, and says so.
    """
    key = site_key(home)
    public = public_key_to_bytes(key.public_key())
    remembered = home / REMEMBERED
    client = FleetHttpClient.from_server_address(
        address, False, ca, [_FlowerVersion(), NodeAuthHttpInterceptor(key, key.public_key())]
    )
    try:
        if remembered.exists():
            with suppress(httpx.HTTPStatusError):  # it was not connected, or this server does not know it
                client.DeactivateNode(DeactivateNodeRequest(node_id=read_json(remembered)["node"]))
                time.sleep(NOTICED)
        found = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30))
        client.DeactivateNode(DeactivateNodeRequest(node_id=found.node_id))
    except httpx.HTTPStatusError as error:
        return refusal(error)
    except httpx.HTTPError as error:
        return {"why": f"the server {address} can't be reached ({error}).", "lasting": False}
    finally:
        client._client.close()
    return None


def refusal(error: httpx.HTTPStatusError) -> dict[str, Any]:
    said = FlowerError.from_json(error.response.text)
    code = said.code if said else None
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        why = (
            "the server does not know this site's key, or somebody else is connected with it: "
            "ask for headwise server register with this site's site.key.pub."
        )
        return {"why": why, "lasting": False}
    if code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
        detail = " ".join(f"{said.message} {said.public_details or ''}".split()) if said else ""
        return {"why": f"this site's version of Flower does not fit the server's: {detail}", "lasting": True}
    if error.response.status_code == httpx.codes.UNAUTHORIZED:
        return {"why": "the server does not accept this site's signature: check both clocks.", "lasting": False}
    return {"why": f"the server refuses this site: {error}", "lasting": False}


class _Connection(logging.Filter):
    """Reports when Flower loses the server, and finds it again."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith("Connection attempt failed"):
            tell(lost=True)
        elif text.startswith("Connection successful"):
            tell(back=True)
        return True


def attend(connection: NodeConnection) -> NoReturn:
    """Answer messages until the process ends."""
    pace = Pace()
    while True:
        asked = time.monotonic()
        if connection.attend():
            pace.answered()
        else:
            time.sleep(pace.pause(time.monotonic() - asked))


def main() -> None:
    bind()
    secret = received_secret()
    settings: Mapping[str, Any] = json.loads(sys.argv[1])
    home, address = Path(settings["home"]), settings["superlink"]
    ca = None if settings["ca"] is None else Path(settings["ca"]).read_bytes()
    if ca is not None and (refused := greet(address, ca, home)):
        tell(**refused)
        sys.exit(1)
    logging.getLogger("flwr").addFilter(_Connection())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the connection then tells the server that it ends
    os.chdir(home)  # for the socket's short name
    key = None if ca is None else site_key(home)
    with http_request_response(address, ca is None, ca, key and (key, key.public_key())) as callbacks:
        connection = NodeConnection(callbacks, Courier(secret).ask)
        write_json(home / REMEMBERED, {"node": connection.node})
        tell(connected=connection.node)
        attend(connection)


if __name__ == "__main__":
    main()
