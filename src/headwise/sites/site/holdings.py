"""List, export and erase a site's personal models, without any server."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ...contract.method import record_types
from ...disk.files import failing_clearly, write_bytes
from ...engine.client.jobs import make_personal_model, restore_trained_model
from ...engine.client.state import decode_state
from ...engine.host.process import one_thread
from ...errors import RunError, nearest
from ...exports.card import check_format, make_card
from ...exports.model import Format
from ...exports.run_models import make_model
from ...records import Packed, decode, to_bytes
from ...settings.choices import Choice
from ..states import SiteStates, runs_in
from .ledger import Ledger
from .own_data import own_data
from .site import open_site
from .site_file import read_site


class Holding(NamedTuple):
    run: str
    client: int
    t: int
    """the last round with a state"""
    bytes: int
    method: str
    trained: str
    """when its last state was written"""

    def line(self) -> str:
        size = f"{self.bytes / 1024:,.1f} KB"
        return f"{self.run}  {self.trained}  {self.method}  client {self.client}  round {self.t}  {size}"


def holdings(path: Path) -> list[Holding]:
    """What the site keeps, in the order in which it was last trained."""
    folder = open_site(path)[0].folder
    found: list[Holding] = []
    for run in runs_in(folder):
        kept = SiteStates(folder, run)
        method = _method(kept)
        for client in kept.clients():
            files = [p.stat() for p in (kept.folder / f"client-{client}").iterdir()]
            t, size = max((v.t for v in kept.versions(client)), default=0), sum(file.st_size for file in files)
            trained = datetime.fromtimestamp(max((file.st_mtime for file in files), default=0), UTC).isoformat(
                timespec="seconds"
            )
            found.append(Holding(run, client, t, size, method, trained))
    return sorted(found, key=lambda each: (each.trained, each.run, each.client))


def _method(kept: SiteStates) -> str:
    """Of a run whose experiment may be damaged."""
    try:
        return str(json.loads(kept.experiment())["method"]["name"])
    except (RunError, ValueError, TypeError, KeyError):
        return "?"


class PrivacySpent(NamedTuple):
    """The privacy budget of one client over all runs."""

    client: int
    epsilon: float
    """of all answers under differential privacy, composed"""
    delta: float
    total: float | None
    """the site's limit, if it sets one"""
    left: float | None
    unit: str | None
    """what epsilon protects: the client, or a single example as soon as one run protected only those"""
    unprotected: int
    """answers without differential privacy"""


def spent(path: Path) -> list[PrivacySpent]:
    settings, home = read_site(path), path.absolute().parent
    allow, ledger, found = settings.allow, Ledger(settings, home), list[PrivacySpent]()
    for own in sorted(settings.clients, key=lambda each: each.id):
        book = ledger.book(own.id)
        now = book.epsilon(allow.delta)
        left = None if allow.total is None else max(0.0, allow.total - now)
        unit = max((e.unit for e in book.runs if e.unit), default=None)  # "example" sorts after "client"
        found.append(PrivacySpent(own.id, now, allow.delta, allow.total, left, unit, book.bare))
    return found


def export(
    path: Path, run: str, client: int, out: Path, format: Format | None = None, moment: str = "pre", licence: str = ""
) -> None:
    """Write a client's current personal model: its weights as a safetensors file, or with a `format` a whole folder."""
    if format is not None:
        check_format(format)
    site, policy = open_site(path)
    kept = _of(site.folder, run, client)
    plan = policy.plan(kept.experiment())
    types, versions = record_types(type(plan.method)), kept.versions(client)
    if not versions:
        raise RunError(f"client {client} has no state in {run}: it has never trained.")
    state = decode_state(types.client, kept.take(client, versions[-1].digest) or b"")
    down = decode(types.down, kept.download(client))
    with one_thread():
        build = make_personal_model if moment == "pre" else restore_trained_model
        model = build(plan, client, versions[-1].t, state, down)
    if model is None:
        raise RunError(f"{run} keeps no models as after training: evaluate.keep = ['post'] does.")
    if not isinstance(model, nn.Module):
        raise RunError(f"{type(plan.method).__name__} gives a function, not a module: make it a Composed to export it.")
    if format is None:
        write_bytes(out, to_bytes(Packed(dict(model.state_dict()), {})))
        return
    settings, home = read_site(path), path.absolute().parent
    source = next(Choice.parse(each.source, "data") for each in settings.clients if each.id == client)
    data = own_data(settings, home, plan.experiment)
    of = {"kind": "personal", "client": client, "name": str(client), "moment": moment, "round": versions[-1].t}
    card = make_card(plan.experiment, source, data.dataset, {**of, "which": "last"}, licence)
    card["training"] |= {"run": run, "site": settings.name, "samples": len(data.parts[client].train)}
    card["privacy"] = next(each._asdict() for each in spent(path) if each.client == client)
    make_model(plan, data, model, card, client).save(out, format)


def erase(path: Path, run: str, client: int) -> None:
    kept = _of(open_site(path)[0].folder, run, client)
    with failing_clearly(kept.folder):
        shutil.rmtree(kept.folder / f"client-{client}")
        if not kept.clients():
            shutil.rmtree(kept.folder)


def _of(folder: Path, run: str, client: int) -> SiteStates:
    runs = runs_in(folder)
    if run not in runs:
        raise RunError(f"there is no run {run!r} in {folder}: {nearest(run, runs)}")
    kept = SiteStates(folder, run)
    if client not in kept.clients():
        raise RunError(f"client {client} has nothing in {kept.folder}: its clients are {kept.clients()}.")
    return kept
