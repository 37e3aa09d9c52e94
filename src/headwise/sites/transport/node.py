"""A site's node: Flower's SuperNode, which here starts no process for a message but hands it to the site's worker.

Run as `python -m headwise.sites.transport.node SETTINGS` by `headwise site start`. Flower's own way, a new process for
each message, costs seconds. With `--isolation process` it leaves the work to others, who take tasks from the node's
own port; that is what a thread of this process does. The rest of Flower that is used here is not public: tested with
flwr 1.41 and 1.42, and if a name moves, the node does not start. Without torch.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime import run_clientapp as flower

from ...disk.files import read_json, write_json
from ...errors import HeadwiseError
from .grid import from_content, to_content
from .lifeline import bind, received_secret, tell
from .local import Answers, Courier
from .processes import SECRET, check_app, supernode

QUICK, SLOW, TENTH = 0.1, 3.0, 0.1
"""seconds between questions to the server: soon after a message, long after one, and as a share of the time since"""
OWN = 0.02
"""seconds between looks for an answer within this process"""
NOTICED = 2.0
"""seconds for the server to notice that a node was away"""
CLIENT_APP = "flwr-clientapp"
RAISED = 2
"""Flower's code for an app that failed"""
REMEMBERED = "node.json"


class Pace:
    """Stands in for `time` in Flower's loop, which always sleeps for 3 seconds: ask often while a run is going on."""

    def __init__(self) -> None:
        self._busy = -SLOW / TENTH

    def sleep(self, seconds: float) -> None:
        if seconds < 1:  # a message is being answered
            self._busy = time.monotonic()
        time.sleep(OWN if seconds < 1 else self.pause(seconds))

    def pause(self, most: float) -> float:
        return min(most, max(QUICK, TENTH * (time.monotonic() - self._busy)))


def serve_tasks(address: str, secret: bytes, answer: Answers, pace: Pace) -> None:
    """Take tasks from the node's own port and answer them, for ever.

    Each has a thread: a message whose run has ended meanwhile never arrives as a whole, and is waited for without end.
    """
    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    client = RuntimeHttpClient.from_server_address(address, True, None, [signed])
    asked = AcquireTaskRequest(supported_task_types=[CLIENT_APP])
    while True:
        try:
            token = client.AcquireTask(asked).token
        except httpx.HTTPError:  # the port is not open yet
            token = ""
        if token:
            threading.Thread(target=_do, args=(address, token, answer), daemon=True).start()
        time.sleep(pace.pause(1.0))


def _do(address: str, token: str, answer: Answers) -> None:
    client = RuntimeHttpClient.from_server_address(address, True, None, [RuntimeTokenHttpInterceptor(token)])
    beats = HeartbeatSender(lambda: _beat(client))
    beats.start()
    context, ended, why = None, "failed", "the task was not finished"
    try:
        message, context, _, fab = flower.pull_task_input(client)
        try:
            check_app(fab.content)
            said = answer(message.metadata.message_type, from_content(message.content))
            reply, ended, why = Message(to_content(said), reply_to=message), "completed", ""
        except Exception as error:
            if not isinstance(error, HeadwiseError):
                logging.getLogger(__name__).exception("a message failed")
            why = f"{type(error).__name__}: {error}"
            reply = Message(Error(RAISED, why), reply_to=message)
        flower.push_message(client, reply, context)
    finally:
        flower.push_task_output(client, context, ended, why)
        beats.stop()
        client._client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


class _FlowerVersion:
    """Tells the server Flower's version; unlike Flower's own, ends nothing."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update(dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()))
        return call_next(context)


def greet(address: str, ca: bytes, home: Path) -> dict[str, Any] | None:
    """Whether the server lets this site in: None, or why not.

    Flower refuses a key that is already connected, and takes a minute to notice that its node was killed. The site
    itself knows that its last node is gone, and says so.
    """
    key: Any = load_ssh_private_key((home / "site.key").read_bytes(), None)
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


def _patched(home: Path, pace: Pace) -> None:
    process = vars(importlib.import_module("flwr.supernode.start_client_internal"))
    connect = process["_init_connection"]

    @contextmanager
    def noticed(**options: Any) -> Iterator[Any]:
        with connect(**options) as found:
            write_json(home / REMEMBERED, {"node": found[0]})
            tell(connected=found[0])
            yield found

    process["time"], process["_init_connection"] = pace, noticed
    logging.getLogger("flwr").addFilter(_Connection())


def main() -> None:
    bind()
    secret = received_secret()
    settings: Mapping[str, Any] = json.loads(sys.argv[1])
    home, address, port = Path(settings["home"]), settings["superlink"], int(settings["port"])
    root = None if settings["ca"] is None else Path(settings["ca"])
    if root is not None and (refused := greet(address, root.read_bytes(), home)):
        tell(**refused)
        sys.exit(1)
    sys.argv, pace = supernode(home, address, root, port), Pace()
    _patched(home, pace)
    os.chdir(home)  # for the socket's short name
    work = (f"127.0.0.1:{port}", (home / SECRET).read_bytes(), Courier(secret).ask, pace)
    threading.Thread(target=serve_tasks, args=work, daemon=True).start()
    flower_supernode()


if __name__ == "__main__":
    main()
