"""Small experiments with clients at sites, and the results that must not depend on that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.app import registry
from headwise.contract.method import record_types
from headwise.engine.executors.base import Setup
from headwise.records import Record, encode, from_bytes, pack
from headwise.runs.checkpoint import Checkpoints
from headwise.sites.server.deployment import serve
from headwise.sites.server.remote import LocalCopies, Remote
from headwise.sites.site.site import OpenPolicy, Site, open_site
from headwise.sites.states import SiteStates
from headwise.sites.transport.envelope import Lost, NodeSeen, SiteMessage

FIVE = ("fedavg", "fedper", "fedfomo", "fedgmh", "fedgh")
"""nothing stays, a head stays, a download per client, a head per label, a head that the server trains"""
TWO = ("fedper", "fedgh")
"""those that `make test` runs with real Flower processes, which take seconds to start"""
DATA = "synthetic:160:4:6:sites=5"


def experiment(method: str = "fedper", **changes: Any) -> hw.Experiment:
    """Five clients, three of them in each of three rounds."""
    usual: dict[str, Any] = {
        "data": DATA,
        "partition": "natural",
        "model": "mlp:6",
        "split": "8:1:1",
        "clients": 5,
        "rounds": 3,
        "sampling": {"ratio": 0.6},
        "evaluate": {"moments": ["pre", "post", "global"]},
    }
    return hw.Experiment(method=method, **{**usual, **changes})


def bits(folder: Path) -> dict[str, Any]:
    """Everything that must be the same wherever the clients are."""
    run = hw.Run(folder)
    with closing(Checkpoints(folder / "checkpoint", record_types(registry.find("method", run.method)))) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        states = {c: found.states.encode(c) for c in found.states}
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in run.rounds]
    lines = (folder / "clients.jsonl").read_bytes()
    return {"rows": rows, "lines": lines, "server": encode(found.progress.server), "states": states, "end": run.ended}


def bits_at_sites(folder: Path, sites: Path) -> dict[str, Any]:
    """`bits`, with the states that the server accepted read from the sites' folders."""
    files = {p.stem.split("-")[2]: p.read_bytes() for p in sites.glob("site*/states/*/client-*/round-*.safetensors")}
    found = bits(folder)
    receipts = {c: str(from_bytes(data).scalars["digest"]) for c, data in found["states"].items()}
    return {**found, "states": {c: files.get(digest) for c, digest in receipts.items()}}


def server_of(folder: Path) -> Record:
    """The final server state of this run."""
    types = record_types(registry.find("method", hw.Run(folder).method))
    with closing(Checkpoints(folder / "checkpoint", types)) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        return found.progress.server


def relative_distance(one: Path, other: Path) -> float:
    """The distance between the final server states of two runs, relative to each tensor's largest value."""
    a, b = (pack(server_of(folder)).tensors for folder in (one, other))
    assert a.keys() == b.keys()
    near = [float((a[k] - b[k]).abs().max() / b[k].abs().max().clamp(min=1e-3)) for k in a if b[k].numel()]
    return max(near, default=0.0)


class LocalLink:
    """A few nodes in this process; `meddle` can change or lose a reply."""

    def __init__(self, site: Site, meddle: Callable[[int, SiteMessage], SiteMessage | Lost], nodes: int) -> None:
        self.site, self.meddle, self.nodes = site, meddle, nodes

    def node_of(self, client: int) -> int:
        return 11 + client % self.nodes

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        for node, message in messages.items():
            yield node, self.meddle(node, self.site.answer("train", message))

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        pass

    def close(self) -> None:
        pass


def use_local_nodes(
    monkeypatch: pytest.MonkeyPatch,
    meddle: Callable[[int, SiteMessage], SiteMessage | Lost] = lambda node, message: message,
    nodes: int = 2,
) -> None:
    """Run the nodes of flower-sim in this process, without Flower."""

    def make(setup: Setup) -> Remote:
        site = Site(setup.folder / "sites", OpenPolicy(setup.data_dir))
        kept = SiteStates(site.folder, "run")
        return Remote(
            setup.plan, setup.experiment, "run", LocalLink(site, meddle, nodes), LocalCopies(setup.states, kept)
        )

    monkeypatch.setattr("headwise.sites.apps.simulate", make)


def write_site(folder: Path, clients: Sequence[int], allow: str = "labels = true", data: str = DATA) -> Path:
    """Write the site.toml of a site with the synthetic data of these clients."""
    folder.mkdir(parents=True, exist_ok=True)
    own = [f'[[clients]]\nid = {c}\nsource = "{data}:only={c}"\n' for c in clients]
    head = f'name = "{folder.name}"\ndata = "synthetic"\n[allow]\n{allow}\n'
    (folder / "site.toml").write_text(head + "".join(own))
    return folder / "site.toml"


class LocalTransport:
    """An in-process stand-in for Flower: each node's number with the site.toml of its site."""

    def __init__(self, sites: Mapping[int, Path]) -> None:
        self.sites = dict(sites)
        self.replies: dict[str, SiteMessage | Lost] = {}
        self.sent: list[tuple[int, str, SiteMessage]] = []
        self.meddle: Callable[[int, str, SiteMessage], SiteMessage | Lost | None] = lambda node, kind, message: message

    def nodes(self) -> dict[int, NodeSeen]:
        return {node: NodeSeen(name=path.parent.name) for node, path in self.sites.items()}

    def send(self, node: int, message: SiteMessage, kind: str, seconds: float | None = None) -> str | None:
        if node not in self.sites:
            return None
        self.sent.append((node, kind, message))
        reply = open_site(self.sites[node]).answer(kind, message)
        number = str(len(self.sent))
        if (changed := self.meddle(node, kind, reply)) is not None:
            self.replies[number] = changed
        return number

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage | Lost]]:
        return [(n, self.replies.pop(n)) for n in numbers if n in self.replies]


def run_deployment(transport: LocalTransport, asked: hw.Experiment, out: Path) -> hw.Run:
    """A deployment inside this process; its sites answer at once."""
    serve(transport, {"order": json.dumps({"experiment": asked.to_plain(), "out": str(out), "wait": 0.0, "sites": []})})
    return hw.Run(out)
