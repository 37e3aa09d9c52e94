"""A model for a client that came after the last round, from an offer that the server's operator handed over.

The site's rules are those of a round. Nothing is sent, so nothing is charged to the ledger.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ...app.prepare import plan_for
from ...contract.method import record_types
from ...engine.host.process import one_thread
from ...engine.joining import Offer, accept, measure_client
from ...engine.plan import Plan
from ...errors import RunError
from ...exports.card import make_card
from ...exports.model import TrainedModel
from ...exports.run_models import make_model
from ...log.metrics import Metric, Score
from ...settings.choices import Choice
from ..offers import read_offer
from .own_data import own_data
from .policy import OwnPolicy
from .site_file import OwnClient, SiteSettings, check_networks, check_privacy, permitted, read_site


class AdaptedHere(NamedTuple):
    model: TrainedModel
    metric: Metric
    trained_on: int
    scores: dict[int, Score]
    """on the client's test samples, by epochs; empty if it has none"""
    fingerprint: str
    """of the offer"""


def adapt(
    path: Path, folder: Path, client: int | None, epochs: int, licence: str = "", expected: str = ""
) -> AdaptedHere:
    """The model of one of the site's clients after so many epochs on its training samples."""
    settings, home, given = read_site(path), path.absolute().parent, read_offer(folder, expected)
    own = _one(settings, client)
    OwnPolicy(settings, home).admit(given.size)
    asked = permitted(_with(settings, own, 0), home, given.experiment)  # as sites check it, whatever its number here
    experiment, here = replace(asked, clients=given.client + 1), _with(settings, own, given.client)
    data = own_data(here, home, experiment)
    check_networks(settings, experiment, data.task)
    plan = plan_for(experiment, data)
    check_privacy(settings, plan)
    plan = replace(plan, data=replace(plan.data, absent=frozenset({given.client})))
    offered = given.offer(record_types(type(plan.method)).down)
    made = {e: _model(plan, offered, given.client, given.t, e, folder) for e in sorted({0, epochs})}
    scores = {e: measure_client(plan, given.client, model) for e, model in made.items()}
    of = {"kind": "adapted", "moment": "join", "round": given.t, "which": "last", "epochs": epochs}
    source = Choice.parse(own.source, "data")
    card = make_card(plan.experiment, source, data.dataset, {**of, "client": own.id, "name": str(own.id)}, licence)
    n = len(data.parts[given.client].train)
    card["training"] |= {"rounds": given.t, "run": given.run, "site": settings.name, "samples": n}
    model = make_model(plan, data, made[epochs], card, given.client)
    return AdaptedHere(model, plan.metric, n, {e: score for e, score in scores.items() if score}, given.fingerprint)


def _one(settings: SiteSettings, client: int | None) -> OwnClient:
    known = {own.id: own for own in settings.clients}
    if client is None and len(known) > 1:
        raise RunError(f"{settings.name} has the clients {sorted(known)}: name one with --client.")
    if client is not None and client not in known:
        raise RunError(f"--client is {client}, but {settings.name} has the clients {sorted(known)}.")
    return next(iter(known.values())) if client is None else known[client]


def _with(settings: SiteSettings, own: OwnClient, number: int) -> SiteSettings:
    """The site with this client alone, under another number."""
    return replace(settings, clients=(replace(own, id=number),))


def _model(plan: Plan, offered: Offer, client: int, t: int, epochs: int, folder: Path) -> nn.Module:
    try:
        with one_thread(), torch.random.fork_rng(devices=[]):
            made = accept(plan, offered, client, t, epochs).model
    except (KeyError, ValueError, RuntimeError, TypeError) as error:  # names or shapes of another network
        raise RunError(f"{folder} does not fit the experiment that it names: {error}.") from error
    if not isinstance(made, nn.Module):
        raise RunError(f"{type(plan.method).__name__} gives a function, not a module: make it a Composed to export it.")
    return made
