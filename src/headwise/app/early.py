"""What can begin before torch is imported."""

from __future__ import annotations

from ..engine.executors.crew import start_server
from ..settings.experiment import Experiment


def expect_workers(experiment: Experiment) -> None:
    """If the experiment asks for several processes, let them import what they need while its data are loaded."""
    engine = experiment.engine
    if engine.kind == "local" and engine.workers.kind == "processes" and engine.workers.count > 1:
        start_server("headwise.app.prepare")
