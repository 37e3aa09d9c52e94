"""What travels between a server and a site, as bytes, and how both write it down.

Imports no torch: the process that carries it must stay light.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, NamedTuple

LARGEST = 500
"""megabytes of a message that a site accepts unless it says otherwise"""


def printable(text: str) -> str:
    """What another machine wrote, safe for a terminal and a log."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def readable(time: str) -> str:
    """A time of `now` or of Flower's, as people read it."""
    return time.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")


class SiteMessage(NamedTuple):
    text: str
    records: list[bytes]

    @property
    def size(self) -> int:
        """Characters of text plus bytes of records; the transport adds its own overhead."""
        return len(self.text) + sum(map(len, self.records))


class Lost(NamedTuple):
    """Stands in for a reply that did not come."""

    why: str
    reason: Literal["no answer", "late", "dropped"] = "no answer"
    """dropped: the round's sum was opened without this node"""


class NodeSeen(NamedTuple):
    """A node that is connected."""

    since: str = ""
    """when it connected: after a restart, what was sent before is lost"""
    name: str = ""
    """as registered at the server; empty if unknown"""
