"""Small experiments whose clients are elsewhere, and the bits that must not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise import catalog
from headwise.config import Experiment
from headwise.engine.plan import Plan
from headwise.engine.state import States
from headwise.flower.remote import Copies, Remote
from headwise.flower.site import Site
from headwise.flower.states import SiteStates
from headwise.flower.wire import Lost, Parcel
from headwise.method import record_types
from headwise.records import encode
from headwise.runs.checkpoint import Checkpoints

FIVE = ("fedavg", "fedper", "fedfomo", "fedgmh", "fedgh")
"""nothing stays, a head stays, downloads for one client only, a head for each label, a head that the server trains"""


def experiment(method: str = "fedper", **changes: Any) -> hw.Experiment:
    """Five clients, three of them in each of three rounds."""
    usual: dict[str, Any] = {
        "data": "synthetic:160:4:6:sites=2",
        "partition": "dirichlet:0.5",
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
    with closing(Checkpoints(folder / "checkpoint", record_types(catalog.find("method", run.method)))) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        states = {c: found.states.encoded(c) for c in found.states}
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in run.rounds]
    lines = (folder / "clients.jsonl").read_bytes()
    return {"rows": rows, "lines": lines, "server": encode(found.progress.server), "states": states, "end": run.ended}


class Here:
    """Two nodes in this process; `meddle` may lose what a site answered."""

    def __init__(self, site: Site, meddle: Callable[[int, Parcel], Parcel | Lost]) -> None:
        self.site, self.meddle = site, meddle

    def node_of(self, client: int) -> int:
        return 11 + client % 2

    def exchange(self, parcels: Mapping[int, Parcel]) -> Iterator[Parcel | Lost]:
        for node, parcel in parcels.items():
            yield self.meddle(node, self.site.answer(parcel))

    def close(self) -> None:
        pass


def elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    meddle: Callable[[int, Parcel], Parcel | Lost] = lambda node, parcel: parcel,
) -> None:
    """From now on the nodes of flower-sim are in this process, without Flower."""

    def simulated(experiment: Experiment, plan: Plan, states: States, data_dir: Path, folder: Path) -> Remote:
        site = Site(folder / "sites", data_dir)
        return Remote(
            plan, experiment, "run", lambda: Here(site, meddle), Copies(states, SiteStates(site.folder, "run"))
        )

    monkeypatch.setattr("headwise.flower.simulation.simulated", simulated)
