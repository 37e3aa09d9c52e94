"""A site's node: talks to Flower's SuperLink in place of a SuperNode, and hands each message to the site's worker.

Run as `python -m headwise.sites.transport.node SETTINGS` by `headwise site start`, without torch. A SuperNode starts a
process for each message, or offers it to others at a port of its own: both cost more than the message itself. Only this
file uses Flower's private API: its connection, its way of sending objects, and its errors. Tested with flwr 1.41 and
1.42; if a name moves, the node does not start.

The node has one server and trusts it with little: no redirects, no proxies, no code, no answer that fills the memory.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ...disk.files import read_json, write_json
from ...errors import ConfigError, HeadwiseError, RunError
from .envelope import LARGEST_MEGABYTES, AnswerMessage, WorkerLine
from .grid import Message, answer_message, refuse_message
from .superlink import Problem, check_app
from .supervisor import bind_life, read_secret, report_event

ANSWER_BYTES = 64 * 10**6
"""most bytes of one of the server's answers; Flower sends messages in pieces of 5 MB"""
ANSWER_SECONDS = 300.0
"""seconds within which such an answer must be complete"""
OVERHEAD_BYTES = 2 * 10**6
"""bytes that Flower may add to a message; the worker checks the size of the message itself"""
LEAVE_SECONDS = 2.0
"""seconds for the server to notice that a node has left"""
NODE_FILE = "node.json"
"""file with the number of the site's last node"""
LOST = (
    RunNotRunningException, inflatable_utils.ObjectPullError, inflatable_utils.ObjectPushError, httpx.HTTPError
)  # fmt: skip
"""why a message is no longer of use: its run has ended, or the server has forgotten it"""


def main() -> None:
    bind_life()
    secret = read_secret()
    settings: Mapping[str, Any] = json.loads(sys.argv[1])
    home = Path(settings["home"])
    address = settings["superlink"]
    ca = None if settings["ca"] is None else Path(settings["ca"]).read_bytes()
    try:
        key = None if ca is None else read_site_key(home)
        problem = None if ca is None else find_refusal(address, ca, key, home / NODE_FILE)
    except HeadwiseError as error:
        report_event(wrong=str(error))
        sys.exit(1)
    if problem:
        report_event(**problem._asdict())
        sys.exit(1)
    logging.getLogger("flwr").addFilter(_ReportConnection())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the connection then tells the server that it ends
    os.chdir(home)  # for the socket's short name
    with connect(address, ca, key) as callbacks:
        node = NodeConnection(callbacks, WorkerLine(secret).ask, partial(largest_message, home))
        write_json(home / NODE_FILE, {"node": node.number})
        report_event(connected=node.number)
        answer_forever(node)


def read_site_key(home: Path) -> ec.EllipticCurvePrivateKey:
    path = home / "site.key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be read as this site's key: {why}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key that headwise site init made: it must be on an elliptic curve.")
    return key


def largest_message(home: Path) -> int:
    """Bytes of a message that the site accepts now; without torch, which reading the whole file needs."""
    settings = tomllib.loads((home / "site.toml").read_text())
    return settings.get("allow", {}).get("largest", LARGEST_MEGABYTES) * 10**6


def answer_forever(node: NodeConnection) -> NoReturn:
    pace = Pace()
    while True:
        begun = time.monotonic()
        if node.answer_next():
            pace.note_answer()
        else:
            time.sleep(pace.pause(time.monotonic() - begun))


class Pace:
    """How long to wait before asking for the next message: a short time while a run is going on."""

    LEAST = 0.1
    MOST = 3.0
    OF_SILENCE = 0.2
    """share of the time since the last message"""
    OF_QUESTION = 10.0
    """multiple of the time that the last question took, so that a busy server is asked less"""

    def __init__(self) -> None:
        self._last = -self.MOST / self.OF_SILENCE

    def note_answer(self) -> None:
        self._last = time.monotonic()

    def pause(self, took: float) -> float:
        silence = time.monotonic() - self._last
        return min(self.MOST, max(self.LEAST, self.OF_SILENCE * silence, self.OF_QUESTION * took))


class NodeConnection:
    """Takes messages from the server with Flower's callbacks, and returns the answers of the site's worker."""

    def __init__(self, callbacks: tuple[Any, ...], answer: AnswerMessage, largest: Callable[[], int]) -> None:
        self.number, self._receive, self._send, self._run, self._fab, self._pull, self._push, self._confirm = callbacks
        self._answer = answer
        self._largest = largest
        self._checked: set[int] = set()
        """runs whose app contains no code"""

    def answer_next(self) -> bool:
        """Answer the next message; whether there was one. A server that refuses to say ends the node."""
        try:
            if (received := self._receive()) is None:
                return False
        except RunNotRunningException:
            return False
        try:
            begun = time.monotonic()
            self._deliver(self._reply(*received), time.monotonic() - begun)
        except LOST as error:
            logging.getLogger(__name__).warning("a message is lost: %s", error or "its run has ended")
            return False
        return True

    def _reply(self, head: Message, tree: ObjectTree) -> Message:
        head.metadata.__dict__["_message_id"] = tree.object_id
        try:
            self._check_app(head.metadata.run_id)
            message = self._fetch(head.metadata.run_id, tree)
            return answer_message(message, self._answer, head)
        except LOST:
            raise
        except HeadwiseError as error:
            why = f"{type(error).__name__}: {error}"
        except Exception as error:  # whatever the server sends; an error text may reveal data
            logging.getLogger(__name__).exception("a message failed")
            why = f"{type(error).__name__}: see the site's log"
        return refuse_message(head, why)

    def _check_app(self, run: int) -> None:
        if run not in self._checked:
            check_app(self._fab(self._run(run).fab_hash, run).content)
            self._checked.add(run)

    def _fetch(self, run: int, tree: ObjectTree) -> Message:
        """The message, piece by piece; one that is too large is not fetched to its end."""
        most = self._largest()
        size = 0

        def pull(number: str) -> bytes:
            nonlocal size
            piece = self._pull(run, number)
            size += len(piece)
            if size > most + OVERHEAD_BYTES:
                raise RunError(f"this site accepts messages of at most {most:,} bytes, but this one has more.")
            return piece

        confirm = partial(self._confirm, run)
        return pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)

    def _deliver(self, reply: Message, seconds: float) -> None:
        run = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with inflatable_object.no_object_id_recompute():
            missing, session = self._send(reply, inflatable_object.get_object_tree(reply), seconds)
            pieces = inflatable_object.get_all_nested_objects(reply)
            push = partial(self._push, run, session)
            inflatable_utils.push_objects(pieces, push, object_ids_to_push=missing)


class _ReportConnection(logging.Filter):
    """Reports when Flower loses the server, and when it is back."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith("Connection attempt failed"):
            report_event(lost=True)
        elif text.startswith("Connection successful"):
            report_event(back=True)
        return True


def find_refusal(address: str, ca: bytes, key: Any, node_file: Path) -> Problem | None:
    """Why the server does not let this site in; None if it does.

    Flower refuses a key that is already connected, and takes a minute to notice that its node was killed. The site
    itself knows that its last node is gone, and says so.
    """
    public = key.public_key()
    interceptors = [_SendVersion(), NodeAuthHttpInterceptor(key, public)]
    client = DirectClient.from_server_address(address, False, ca, interceptors)
    try:
        if node_file.exists():
            with suppress(httpx.HTTPStatusError):  # it was not connected, or this server does not know it
                client.DeactivateNode(DeactivateNodeRequest(node_id=read_json(node_file)["node"]))
                time.sleep(LEAVE_SECONDS)
        node = client.ActivateNode(ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30))
        client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
    except httpx.HTTPStatusError as error:
        return explain_refusal(error)
    except httpx.HTTPError as error:
        return Problem(f"the server {address} can't be reached ({error}).", lasting=False)
    finally:
        client.close()
    return None


def explain_refusal(error: httpx.HTTPStatusError) -> Problem:
    reply = FlowerError.from_json(error.response.text)
    code = reply.code if reply else None
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        why = (
            "the server does not know this site's key, or somebody else is connected with it: "
            "ask for headwise server register with this site's site.key.pub."
        )
        return Problem(why, lasting=False)
    if reply and code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
        detail = " ".join(f"{reply.message} {reply.public_details or ''}".split())
        return Problem(f"this site's version of Flower does not fit the server's: {detail}", lasting=True)
    if error.response.status_code == httpx.codes.UNAUTHORIZED:
        return Problem("the server does not accept this site's signature: check both clocks.", lasting=False)
    return Problem(f"the server refuses this site: {error}", lasting=False)


class _SendVersion:
    """Sends Flower's version to the server; unlike Flower's own interceptor, ends nothing."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update(dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()))
        return call_next(context)


def connect(address: str, ca: bytes | None, key: Any) -> AbstractContextManager[tuple[Any, ...]]:
    """Flower's connection of a node, with our client: a number and seven functions. Without `ca`, not encrypted."""
    fleet_http_connection.FleetHttpClient = DirectClient  # pyright: ignore[reportPrivateImportUsage] (the only way in)
    keys = None if key is None else (key, key.public_key())
    return fleet_http_connection.http_request_response(address, ca is None, ca, keys)


class DirectClient(FleetHttpClient):
    """Flower's own client follows redirects, so that a server could have a site send requests to any machine near it.

    This one follows none, uses no proxies and bounds answers.
    """

    def __init__(self, base_url: str, *, verify: Any = True, timeout: float = 30.0, **more: Any) -> None:
        super().__init__(base_url, verify=verify, timeout=timeout, **more)
        self._client.close()
        self._client = httpx.Client(transport=_BoundedTransport(verify=verify), timeout=timeout)


class _BoundedTransport(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        answer = super().handle_request(request)
        assert isinstance(answer.stream, httpx.SyncByteStream)
        if "content-encoding" in answer.headers:  # a few bytes could become many
            answer.stream.close()
            raise httpx.DecodingError("the server's answer is compressed", request=request)
        stream = _BoundedStream(answer.stream)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions)


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        until = time.monotonic() + ANSWER_SECONDS
        for part in self._stream:
            size += len(part)
            if size > ANSWER_BYTES:
                raise httpx.DecodingError(f"the server's answer has more than {ANSWER_BYTES:,} bytes")
            if time.monotonic() > until:
                raise httpx.ReadTimeout(f"the server's answer takes more than {ANSWER_SECONDS:g} seconds")
            yield part

    def close(self) -> None:
        self._stream.close()


if __name__ == "__main__":
    main()
