"""Whether a server lets a site in, asked before the site's node connects; why not, as a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ...disk.files import read_json
from ...errors import ConfigError
from .direct import DirectClient

NOTICED = 2.0
"""seconds for the server to notice that a node was away"""
REMEMBERED = "node.json"
"""file with the number of the site's last node"""


class _FlowerVersion:
    """Tells the server Flower's version; unlike Flower's own, ends nothing."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update(dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()))
        return call_next(context)


def site_key(home: Path) -> ec.EllipticCurvePrivateKey:
    path = home / "site.key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be read as this site's key: {why}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key that headwise site init made: it must be on an elliptic curve.")
    return key


def greet(address: str, ca: bytes, home: Path) -> dict[str, Any] | None:
    """Whether the server lets this site in: None, or why not.

    Flower refuses a key that is already connected, and takes a minute to notice that its node was killed. The site
    itself knows that its last node is gone, and says so.
    """
    key = site_key(home)
    public = public_key_to_bytes(key.public_key())
    remembered = home / REMEMBERED
    client = DirectClient.from_server_address(
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
        client.close()
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
