"""What a site has of its clients' models: to be listed, exported and erased without any server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ...contract.method import record_types
from ...disk.files import failing_clearly, write_bytes
from ...engine.client.jobs import personal_model
from ...engine.client.state import decode_state
from ...engine.host.process import one_thread
from ...errors import RunError, nearest
from ...records import Packed, decode, to_bytes
from ..states import SiteStates, runs_in
from .ledger import Ledger
from .site import open_site
from .site_file import read_site


class Holding(NamedTuple):
    """A client's part in a run."""

    run: str
    client: int
    t: int
    """the last round of which it has a state"""
    bytes: int


def holdings(path: Path) -> list[Holding]:
    """All that the site of this file has."""
    folder = open_site(path)[0].folder
    found: list[Holding] = []
    for run in runs_in(folder):
        kept = SiteStates(folder, run)
        for client in kept.clients():
            size = sum(p.stat().st_size for p in (kept.folder / f"client-{client}").iterdir())
            found.append(Holding(run, client, max((v.t for v in kept.versions(client)), default=0), size))
    return found


class PrivacySpent(NamedTuple):
    """What a client's data have told, over all runs."""

    client: int
    epsilon: float
    """of all answers under differential privacy together"""
    delta: float
    total: float | None
    """what the site allows; none: no limit is set"""
    left: float | None
    unit: str | None
    """what epsilon is about: the client as a whole, or, as soon as one run protected no more, one of its examples"""
    unprotected: int
    """answers without any privacy"""


def spent(path: Path) -> list[PrivacySpent]:
    """What the ledger of this file's site says of each of its clients."""
    settings, home = read_site(path), path.absolute().parent
    allow, found = settings.allow, list[PrivacySpent]()
    for own in sorted(settings.clients, key=lambda each: each.id):
        book = Ledger(settings, home).book(own.id)
        now = book.epsilon(allow.delta)
        left = None if allow.total is None else max(0.0, allow.total - now)
        unit = max((e.unit for e in book.runs if e.unit), default=None)  # "example" comes after "client"
        found.append(PrivacySpent(own.id, now, allow.delta, allow.total, left, unit, book.bare))
    return found


def export(path: Path, run: str, client: int, out: Path) -> None:
    """Write a client's personal model, as it would use it now, as one safetensors file."""
    site, policy = open_site(path)
    kept = _of(site.folder, run, client)
    plan = policy.plan(kept.experiment())
    types, versions = record_types(type(plan.method)), kept.versions(client)
    if not versions:
        raise RunError(f"client {client} has no state of the run {run}: it has never trained.")
    state = decode_state(types.client, kept.take(client, versions[-1].digest) or b"")
    down = decode(types.down, kept.download(client))
    with one_thread():
        model = personal_model(plan, client, versions[-1].t, state, down)
    if not isinstance(model, nn.Module):
        name = type(plan.method).__name__
        raise RunError(f"a personal model of {name} is more than one network: it can't be exported as one.")
    write_bytes(out, to_bytes(Packed(dict(model.state_dict()), {})))


def erase(path: Path, run: str, client: int) -> None:
    """Remove all that the site has of a client's part in a run."""
    kept = _of(open_site(path)[0].folder, run, client)
    with failing_clearly(kept.folder):
        shutil.rmtree(kept.folder / f"client-{client}")
        if not kept.clients():
            shutil.rmtree(kept.folder)


def _of(folder: Path, run: str, client: int) -> SiteStates:
    """The states of this run, if it has this client."""
    runs = runs_in(folder)
    if run not in runs:
        raise RunError(f"there is no run {run!r} in {folder}: {nearest(run, runs)}")
    kept = SiteStates(folder, run)
    if client not in kept.clients():
        raise RunError(f"client {client} has nothing in {kept.folder}: those that have are {kept.clients()}.")
    return kept
