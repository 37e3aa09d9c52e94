"""A site's personal models, without any server: list, export and erase them, and make one from a server's offer.

An offer is for a client that joins after the last round. The same rules apply as in a round; nothing is sent, so
nothing is charged to the ledger.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ...app.prepare import plan_for
from ...contract.method import record_types
from ...disk.files import explain_write_errors, write_bytes
from ...engine.client.jobs import make_personal_model, restore_trained_model
from ...engine.client.state import decode_state
from ...engine.host import use_one_thread
from ...engine.joining import Offer, accept, measure_client
from ...engine.plan import Plan
from ...errors import RunError, nearest
from ...exports.card import check_format, make_card
from ...exports.model import Format, TrainedModel
from ...exports.run_models import collect_inputs, make_model, require_module
from ...log.metrics import Metric, Score
from ...records import Packed, decode, to_bytes
from ...settings.choices import Choice
from ..offers import read_offer
from ..states import SiteStates, runs_in
from .ledger import privacy_spent
from .own_data import own_data
from .policy import read_policy
from .site_file import OwnClient, SiteSettings


class Holding(NamedTuple):
    """A client's part in a run, stored at its site."""

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


def list_holdings(path: Path) -> list[Holding]:
    """What the site keeps, in the order in which it was last trained."""
    folder = read_policy(path).states
    rows: list[Holding] = []
    for run in runs_in(folder):
        kept = SiteStates(folder, run)
        method = _method_name(kept)
        for client in kept.clients():
            files = [p.stat() for p in (kept.folder / f"client-{client}").iterdir()]
            t = max((v.t for v in kept.versions(client)), default=0)
            last = datetime.fromtimestamp(max((file.st_mtime for file in files), default=0), UTC)
            size = sum(file.st_size for file in files)
            rows.append(Holding(run, client, t, size, method, last.isoformat(timespec="seconds")))
    return sorted(rows, key=lambda each: (each.trained, each.run, each.client))


def _method_name(kept: SiteStates) -> str:
    """The method of a run whose experiment may be damaged."""
    try:
        return str(json.loads(kept.experiment())["method"]["name"])
    except (RunError, ValueError, TypeError, KeyError):
        return "?"


def export(
    path: Path, run: str, client: int, out: Path, format: Format | None = None, moment: str = "pre", licence: str = ""
) -> None:
    """Write a client's current personal model: its weights as a safetensors file, or with a `format` a whole folder."""
    if format is not None:
        check_format(format)
    policy = read_policy(path)
    kept = _find(policy.states, run, client)
    plan = policy.plan(kept.experiment())
    types = record_types(type(plan.method))
    versions = kept.versions(client)
    if not versions:
        raise RunError(f"client {client} has no state in {run}: it has never trained.")
    t = versions[-1].t
    state = decode_state(types.client, kept.take(client, versions[-1].digest) or b"")
    with use_one_thread():
        build = make_personal_model if moment == "pre" else restore_trained_model
        model = build(plan, client, t, state, decode(types.down, kept.download(client)))
    if model is None:
        raise RunError(f"{run} keeps no post-training models: rerun it with evaluate.keep = ['post'].")
    module = require_module(plan, model)
    if format is None:
        write_bytes(out, to_bytes(Packed(dict(module.state_dict()), {})))
        return
    data = own_data(policy.settings, policy.home, plan.experiment)
    source = next(each.source for each in policy.settings.clients if each.id == client)
    of = {"kind": "personal", "client": client, "name": str(client), "moment": moment, "round": t, "which": "last"}
    card = make_card(plan.experiment, Choice.parse(source, "data"), data.dataset, of, licence)
    card["training"] |= {"run": run, "site": policy.settings.name, "samples": len(data.parts[client].train)}
    card["privacy"] = next(each._asdict() for each in privacy_spent(path) if each.client == client)
    make_model(plan, module, card, collect_inputs(data, client, card)).save(out, format)


def erase(path: Path, run: str, client: int) -> None:
    kept = _find(read_policy(path).states, run, client)
    with explain_write_errors(kept.folder):
        shutil.rmtree(kept.folder / f"client-{client}")
        if not kept.clients():
            shutil.rmtree(kept.folder)


def _find(folder: Path, run: str, client: int) -> SiteStates:
    runs = runs_in(folder)
    if run not in runs:
        raise RunError(f"there is no run {run!r} in {folder}: {nearest(run, runs)}")
    kept = SiteStates(folder, run)
    if client not in kept.clients():
        raise RunError(f"client {client} has nothing in {kept.folder}: its clients are {kept.clients()}.")
    return kept


class OfferedModel(NamedTuple):
    model: TrainedModel
    metric: Metric
    trained_on: int
    scores: dict[int, Score]
    """on the client's test samples, by epochs; empty if it has none"""
    fingerprint: str
    """of the offer"""


def adapt(
    path: Path, folder: Path, client: int | None, epochs: int, licence: str = "", expected: str = ""
) -> OfferedModel:
    """The model of one of the site's clients after so many epochs on its training samples."""
    policy = read_policy(path)
    settings = policy.settings
    own = _choose_client(settings, client)
    given = read_offer(folder, expected, policy.admit)
    first = replace(policy, settings=_keep_only(settings, own, 0))  # as in a round, where its number is known
    experiment = replace(first.permit(given.experiment), clients=given.client + 1)
    data = own_data(_keep_only(settings, own, given.client), policy.home, experiment)
    policy.check_networks(experiment, data.task)
    plan = plan_for(experiment, data)
    policy.check_privacy(plan)
    plan = replace(plan, data=replace(plan.data, absent=frozenset({given.client})))
    offer = given.offer(record_types(type(plan.method)).down)
    models = {e: _accept(plan, offer, given.client, given.t, e, folder) for e in sorted({0, epochs})}
    scores = {e: measure_client(plan, given.client, model) for e, model in models.items()}
    of = {"kind": "adapted", "client": own.id, "name": str(own.id), "moment": "join", "round": given.t, "which": "last"}
    source = Choice.parse(own.source, "data")
    card = make_card(plan.experiment, source, data.dataset, {**of, "epochs": epochs}, licence)
    n = len(data.parts[given.client].train)
    card["training"] |= {"rounds": given.t, "run": given.run, "site": settings.name, "samples": n}
    model = make_model(plan, models[epochs], card, collect_inputs(data, given.client, card))
    return OfferedModel(model, plan.metric, n, {e: score for e, score in scores.items() if score}, given.fingerprint)


def _choose_client(settings: SiteSettings, client: int | None) -> OwnClient:
    known = {own.id: own for own in settings.clients}
    if client is None and len(known) > 1:
        raise RunError(f"{settings.name} has the clients {sorted(known)}: name one with --client.")
    if client is not None and client not in known:
        raise RunError(f"--client is {client}, but {settings.name} has the clients {sorted(known)}.")
    return settings.clients[0] if client is None else known[client]


def _keep_only(settings: SiteSettings, own: OwnClient, number: int) -> SiteSettings:
    """The site with this client only, under another number."""
    return replace(settings, clients=(replace(own, id=number),))


def _accept(plan: Plan, offer: Offer, client: int, t: int, epochs: int, folder: Path) -> nn.Module:
    try:
        with use_one_thread(), torch.random.fork_rng(devices=[]):
            model = accept(plan, offer, client, t, epochs).model
    except (KeyError, ValueError, RuntimeError, TypeError) as error:  # names or shapes of another network
        raise RunError(f"{folder} does not fit the experiment that it names: {error}.") from error
    return require_module(plan, model)
