"""A run whose clients are at sites: what the server's process and a site's process do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import catalog
from ..config import Experiment, experiment_from, read_toml
from ..engine.plan import Plan
from ..engine.state import States
from ..launch import run_or_resume
from ..method import record_types
from ..records import Packed, from_bytes, to_bytes
from ..settings import Count, Natural, build
from .remote import Remote
from .site import Site
from .states import digest_of
from .wire import Link, Parcel


@dataclass(frozen=True)
class SiteSettings:
    """What a site decides for itself: its ``site.toml``."""

    clients: tuple[Natural, ...]
    """the clients that live here"""
    data: str
    """the folder of the data"""
    states: str = "states"
    """the folder of the personal states"""
    methods: tuple[str, ...] = ()
    """the methods that may run here; none named: all that Headwise has, but no files"""
    largest: Count = 500
    """megabytes of a message, at most"""


def open_site(path: str) -> tuple[Callable[[Parcel], Parcel], list[int]]:
    """What answers orders at the site that this file describes, and its clients."""
    home = Path(path).absolute()
    asked = build(SiteSettings, read_toml(home))
    methods = asked.methods or tuple(catalog.names("method"))
    folders = (home.parent / asked.states, home.parent / asked.data)
    return Site(*folders, asked.clients, methods, asked.largest * 10**6).answer, list(asked.clients)


class Receipts(States):
    """States that are at sites: here are their digests only, and nobody can read a state."""

    def __iter__(self) -> Iterator[int]:
        """No client has its state here."""
        return iter(())


class Digests:
    """Remembers states by their digests, which the run's checkpoints store."""

    def __init__(self, before: States, method: type[Any]) -> None:
        self.states: States = Receipts(record_types(method).client)
        for client in before:
            if (data := before.encoded(client)) is not None:
                self.states[client] = data

    def digest(self, client: int) -> str:
        """As it stands in the receipt."""
        data = self.states.encoded(client)
        return "" if data is None else str(from_bytes(data).scalars["digest"])

    def took(self, client: int, digest: str) -> None:
        """Write a receipt."""
        self.states[client] = to_bytes(Packed({}, {"digest": digest}))


def serve(nodes: Callable[[int, float], Link], config: dict[str, Any]) -> None:
    """A run from its beginning, or from where it was, with clients at these nodes."""
    asked = json.loads(config["order"])

    def place(experiment: Experiment, plan: Plan, states: States, data_dir: Path, folder: Path) -> Remote:
        opened = partial(nodes, len(plan.data), float(asked["deadline"]))
        run = f"run-{digest_of((folder / 'manifest.json').read_bytes())[:16]}"  # it says when the run was begun
        return Remote(plan, experiment, run, opened, Digests(states, type(plan.method)), workers=len(plan.data))

    run_or_resume(experiment_from(asked["experiment"]), Path(asked["out"]), data_dir=asked["data"], place=place)
