"""`--health`: an endpoint on loopback that says whether the command is well, and its figures for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .ports import wait_until_free

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Health:
    trouble: str
    """empty if all is well"""
    figures: Mapping[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    """each gauge's value and what it is"""

    def metrics(self) -> str:
        """Prometheus's text format."""
        well = {"headwise_healthy": (float(not self.trouble), "1 if /healthz says ok"), **self.figures}
        lines = (f"# HELP {k} {what}\n# TYPE {k} gauge\n{k} {value:.17g}\n" for k, (value, what) in well.items())
        return "".join(lines)


@contextmanager
def health_endpoint(port: int | None, look: Callable[[], Health]) -> Iterator[None]:
    """Serve /healthz (200 or 503) and /metrics until the block ends; nothing without a port."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = look()
            if self.path == "/healthz":
                self._say(503 if found.trouble else 200, f"{found.trouble or 'ok'}\n", "text/plain; charset=utf-8")
            elif self.path == "/metrics":
                self._say(200, found.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self._say(404, "there are /healthz and /metrics\n", "text/plain; charset=utf-8")

        def _say(self, code: int, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Not a line per question: monitors ask every few seconds."""

    wait_until_free("--health", LOOPBACK, port)
    with ThreadingHTTPServer((LOOPBACK, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
