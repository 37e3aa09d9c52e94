"""Clients on the virtual nodes of Flower's simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..config import Experiment
from ..engine.options import Engine
from ..engine.plan import Plan
from ..engine.process import cores
from ..engine.state import States
from .grounds import Simulated
from .remote import Copies, Remote
from .site import Site
from .states import SiteStates

RUN = "run"  # the folder of the nodes is that of one run only


def simulated(experiment: Experiment, plan: Plan, states: States, data_dir: Path, folder: Path) -> Remote:
    """The executor of ``engine.kind = "flower-sim"``; the nodes keep their states in the run's own folder."""
    from .grid import Simulation, client_app  # here, because all else can be tested without Flower

    engine = experiment.engine
    site = Site((folder / "sites").absolute(), Simulated(data_dir.absolute()))
    workers = engine.workers.count or cores()
    nodes = min(engine.flower.nodes or len(plan.data), len(plan.data))
    link = Simulation(client_app(site.answer), nodes, backend(engine, workers))
    memory = Copies(states, SiteStates(site.folder, RUN))
    return Remote(plan, experiment, RUN, link, memory, workers=min(workers, nodes))


def backend(engine: Engine, workers: int) -> dict[str, Any]:
    """What Ray is told."""
    asked = engine.flower
    here = {"address": asked.ray} if asked.ray else {"num_cpus": math.ceil(workers * asked.cpus)}
    return {
        "init_args": {**here, "logging_level": "ERROR", "log_to_driver": False},
        "client_resources": {"num_cpus": asked.cpus, "num_gpus": asked.gpus},
    }
