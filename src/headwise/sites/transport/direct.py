"""A node's connection to its one server: no redirects, no proxies, and no answer that fills the memory.

Flower's own client follows redirects, so that a server could have a site send requests to any machine near it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient

LARGEST = 64 * 10**6
"""bytes of an answer; Flower sends messages in pieces of 5 MB"""


class DirectClient(FleetHttpClient):
    def __init__(self, base_url: str, *, verify: Any = True, timeout: float = 30.0, **more: Any) -> None:
        super().__init__(base_url, verify=verify, timeout=timeout, **more)
        self._client.close()
        self._client = httpx.Client(transport=_Bounded(verify=verify), timeout=timeout)  # follows no redirects


class _Bounded(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        found = super().handle_request(request)
        assert isinstance(found.stream, httpx.SyncByteStream)
        if "content-encoding" in found.headers:  # a few bytes could become many
            found.stream.close()
            raise httpx.DecodingError("the server's answer is compressed", request=request)
        return httpx.Response(
            found.status_code, headers=found.headers, stream=_Limited(found.stream), extensions=found.extensions
        )


class _Limited(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > LARGEST:
                raise httpx.DecodingError(f"the server's answer has more than {LARGEST:,} bytes")
            yield part

    def close(self) -> None:
        self._stream.close()


def connection(address: str, ca: bytes | None, key: Any) -> AbstractContextManager[tuple[Any, ...]]:
    """Flower's connection of a node, with our client: a number and seven functions. Without `ca`, not encrypted."""
    fleet_http_connection.FleetHttpClient = DirectClient  # pyright: ignore[reportPrivateImportUsage] (the only way in)
    keys = None if key is None else (key, key.public_key())
    return fleet_http_connection.http_request_response(address, ca is None, ca, keys)
