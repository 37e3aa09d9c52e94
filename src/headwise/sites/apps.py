"""How Flower starts Headwise: the apps of `flwr run`, and the executor of Flower's simulation.

Importing this is cheap, because a SuperNode that was started by hand does so for each message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .transport import grid
from .transport.envelope import AnswerMessage

if TYPE_CHECKING:
    from ..engine.executors.base import Setup
    from ..settings.options import Engine
    from .server.remote import Remote

SIMULATED_RUN = "run"  # fixed: the nodes' folder belongs to a single run


def _open(node_config: Mapping[str, Any]) -> AnswerMessage:
    from .site.site import open_site

    return open_site(Path(str(node_config["site"]))).answer


def _serve(transport: grid.FlowerTransport, config: dict[str, Any]) -> None:
    from .server.deployment import serve

    serve(transport, config)


client_app = grid.client_app(_open)
server_app = grid.server_app(_serve)


def simulate(setup: Setup) -> Remote:
    """The executor for ``engine.kind = "flower-sim"``; its virtual nodes keep their states in the run folder."""
    from .server.remote import LocalCopies, Remote
    from .site.site import OpenPolicy, Site
    from .states import SiteStates

    site = Site((setup.folder / "sites").absolute(), OpenPolicy(setup.data_dir.absolute()))
    clients = len(setup.plan.data)
    nodes = min(setup.engine.flower.nodes or clients, clients)
    link = grid.Simulation(grid.client_app(lambda _: site.answer), nodes, backend_config(setup.engine, setup.workers))
    index = LocalCopies(setup.states, SiteStates(site.folder, SIMULATED_RUN))
    return Remote(setup.plan, setup.experiment, SIMULATED_RUN, link, index, workers=min(setup.workers, nodes))


def backend_config(engine: Engine, workers: int) -> dict[str, Any]:
    """Flower's `backend_config`, which goes to Ray."""
    flower = engine.flower
    where = {"address": flower.ray} if flower.ray else {"num_cpus": math.ceil(workers * flower.cpus)}
    return {
        "init_args": {**where, "logging_level": "ERROR", "log_to_driver": False},
        "client_resources": {"num_cpus": flower.cpus, "num_gpus": flower.gpus},
    }
