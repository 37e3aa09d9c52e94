"""Clients on the virtual nodes of Flower's simulation."""

from __future__ import annotations

import math
from typing import Any

from ..engine.executors.base import Setup
from ..settings.options import Engine
from .server.remote import LocalCopies, Remote
from .site.site import OpenPolicy, Site
from .states import SiteStates

RUN = "run"  # fixed: the nodes' folder belongs to a single run


def make(setup: Setup) -> Remote:
    """The executor for ``engine.kind = "flower-sim"``; nodes keep their states in the run folder."""
    from .transport.grid import Simulation, client_app  # imported here so that the rest can be tested without Flower

    site = Site((setup.folder / "sites").absolute(), OpenPolicy(setup.data_dir.absolute()))
    clients = len(setup.plan.data)
    nodes = min(setup.engine.flower.nodes or clients, clients)
    link = Simulation(client_app(lambda _: site.answer), nodes, backend(setup.engine, setup.workers))
    index = LocalCopies(setup.states, SiteStates(site.folder, RUN))
    return Remote(setup.plan, setup.experiment, RUN, link, index, workers=min(setup.workers, nodes))


def backend(engine: Engine, workers: int) -> dict[str, Any]:
    """Flower's `backend_config`, which goes to Ray."""
    flower = engine.flower
    where = {"address": flower.ray} if flower.ray else {"num_cpus": math.ceil(workers * flower.cpus)}
    return {
        "init_args": {**where, "logging_level": "ERROR", "log_to_driver": False},
        "client_resources": {"num_cpus": flower.cpus, "num_gpus": flower.gpus},
    }
