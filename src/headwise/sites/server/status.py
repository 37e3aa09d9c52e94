"""`headwise server status`: who is here, and how far the latest run is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...disk.files import read_json
from ...runs.query import Run
from ..transport.envelope import readable
from ..transport.family import running
from ..transport.processes import NAME, flwr_json
from .registry import registered
from .submit import LATEST


@dataclass(frozen=True)
class SiteSeen:
    name: str
    here: bool
    since: str | None
    """when it connected, or went; None if it has never been here"""

    @property
    def line(self) -> str:
        if self.since is None:
            return f"  {self.name}  has never connected"
        return f"  {self.name}  {'connected' if self.here else 'not connected'} since {readable(self.since)}"


@dataclass(frozen=True)
class ServerStatus:
    address: str | None
    """None if the server does not run"""
    since: str | None
    sites: tuple[SiteSeen, ...] = ()
    run: str | None = None
    """folder of the latest run"""
    round: int = 0
    rounds: int = 0
    ended: str | None = None
    sent: int = 0
    """bytes that this run has sent to sites"""
    received: int = 0
    privacy: str = ""
    """what the run guarantees once it has ended"""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        yield f"running at {self.address} since {readable(self.since or '')}" if self.address else "not running"
        yield from (site.line for site in self.sites)
        if self.run is None:
            yield "no run yet"
            return
        yield f"{self.run}: round {self.round} of {self.rounds}, {self.ended}"
        yield f"  {self.sent / 1e6:,.2f} MB sent to sites, {self.received / 1e6:,.2f} MB received"
        if self.privacy:
            yield f"  the whole run has {self.privacy}; sites know what is left, see headwise site status"


def server_status(home: Path) -> ServerStatus:
    found = running(home)
    here = ServerStatus(None, None) if found is None else ServerStatus(found.get("address"), found.get("since"))
    sites = () if found is None else tuple(_sites(home, here.since or ""))
    out = Path(read_json(home / LATEST)["out"]) if (home / LATEST).exists() else None
    if out is None or not (out / "manifest.json").exists():
        return ServerStatus(here.address, here.since, sites)
    run = Run(out)
    return ServerStatus(
        here.address,
        here.since,
        sites,
        str(out),
        max((row["round"] for row in run.rounds), default=0),
        run.manifest["experiment"]["rounds"],
        run.ended,
        sum(row["bytes_down"] for row in run.sites),
        sum(row["bytes_up"] for row in run.sites),
        run.privacy,
    )


def _sites(home: Path, start: str) -> Iterator[SiteSeen]:
    """Nobody is connected for longer than the server runs, but Flower says so of sites that came back."""
    names = registered(home)
    for node in flwr_json(home, "supernode", "list", NAME)["nodes"]:
        here = node["status"] == "online"
        since = node["online-at"] if here else node["offline-at"]
        name = names.get(node["node-id"], f"node {node['node-id']}")
        known = None if since == "N/A" else since.replace(" ", "T").replace("Z", "+00:00")
        yield SiteSeen(name, here, max(known, start) if known and here else known)
