"""Runs that continue from a finished one, with its server's and clients' states, perhaps on other data and clients.

The new run has its own folder. Clients keep their numbers, and round numbers continue wherever they matter: for draws,
seeds and the learning rate's decay. So on the same data, ten rounds and then ten more are the same as twenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..contract.method import record_types
from ..disk.files import digest, read_bytes
from ..engine.events import Progress
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..records import Packed, pack
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.query import Run
from ..settings.experiment import Experiment, experiment_from
from ..settings.names import SITES
from . import registry

SAME = ("method", "model", "server_model", "seed", "buffers")
"""settings that both runs must share: states would not fit, or mean something else"""


def settings_after(folder: Path) -> dict[str, Any]:
    """The default settings of a run that continues from this one; no clients are held out."""
    run = Run(folder)
    run.check_complete()
    values = dict(run.manifest["experiment"])
    names = run.names or tuple(map(str, range(values["clients"])))
    if values["partition"]["name"] == "natural":
        del values["clients"]  # the data says how many
    before = values["origin"]["rounds"]
    values["origin"] = {
        "run": str(folder.absolute()),
        "hash": hash_of(folder),
        "rounds": before + len(run.rounds),
        "clients": list(names),
    }
    return {**values, "evaluate": {**values["evaluate"], "new_clients": 0.0}}


def continue_from(values: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings: those of `settings_after`, perhaps changed by the user."""
    before = registry.resolve_all(experiment_from(Run(Path(values["origin"]["run"])).manifest["experiment"]))
    experiment = experiment_from(values)
    divided = experiment.clients or (0 if experiment.partition.name == "natural" else 20)
    experiment = replace(experiment, origin=replace(experiment.origin, divided=divided))
    resolved = registry.resolve_all(experiment)
    for name in SAME:
        differs = getattr(resolved, name) != getattr(before, name)
        if name == "method":  # its options may change
            differs = resolved.method.name != before.method.name
        if differs:
            raise ConfigError(
                f"{name} differs from that of {experiment.origin.run}, but a run that continues from it must keep it."
            )
    if experiment.evaluate.new_clients:
        raise ConfigError(
            f"evaluate.new_clients is {experiment.evaluate.new_clients:g}, but these clients are not new."
        )
    if experiment.privacy.clip is not None or before.privacy.clip is not None:
        raise ConfigError("privacy.clip is set, but a private run can't be continued: epsilon counts one run's rounds.")
    if {experiment.engine.kind, before.engine.kind} & set(SITES):
        raise ConfigError(
            "engine.kind has sites, which keep their clients' states: only runs on this machine can be continued."
        )
    return experiment


def start_states(plan: Plan, classes: list[str]) -> tuple[Progress, dict[int, bytes]]:
    """The server's state, and those of the clients that still take part."""
    origin = plan.experiment.origin
    folder = Path(origin.run)
    run = Run(folder)
    run.check_complete()
    checkpoint = _checkpoint(folder, plan)
    if hash_of(folder) != origin.hash:
        raise RunError(f"{folder} has changed since this run was set up: start it again with --from.")
    if not set(plan.clients) & set(range(len(origin.clients))):
        raise RunError(f"{folder} knows none of these clients: its own are {', '.join(origin.clients[:10])}.")
    if (then := run.partition.get("classes", [])) != classes:
        classes_then = ", ".join(map(str, then[:20]))
        raise RunError(
            f"{folder} was trained on the classes {classes_then}, but the data has {', '.join(classes[:20])}."
        )
    for who, packed in [
        ("server", pack(checkpoint.progress.server)),
        *((c, pack(s.me)) for c, s in checkpoint.states.items()),
    ]:
        _check_shapes(packed, plan, f"the state of {who if who == 'server' else f'client {who}'} in {folder}")
    states = {c: data for c in plan.clients if (data := checkpoint.states.encode(c)) is not None}
    return Progress(0, checkpoint.progress.server, {}), states


def hash_of(folder: Path) -> str:
    """Hash of the manifest and the name of the last checkpoint."""
    last = max((p.name for p in (folder / "checkpoint").glob("round-*.safetensors")), default="")
    return digest(read_bytes(folder / "manifest.json") + last.encode())


def _checkpoint(folder: Path, plan: Plan) -> Checkpoint:
    kept = Checkpoints(folder / "checkpoint", record_types(type(plan.method)))
    checkpoint = kept.look()
    kept.close()
    if checkpoint is None:
        raise RunError(f"{folder} has no checkpoint: it can't be continued.")
    return checkpoint


def _check_shapes(packed: Packed, plan: Plan, where: str) -> None:
    """Refuse parameters of another network: the data may now have more columns, or other classes."""
    if not plan.method.fixed_layout:
        return
    known = [plan.shapes(m) for m in (*plan.models, plan.common)]
    for key, tensor in packed.tensors.items():
        name = key.partition("/")[2]
        sizes = {shapes[name] for shapes in known if name in shapes}
        if sizes and tensor.shape not in sizes:
            now = " or ".join(str(list(s)) for s in sizes)
            raise RunError(f"{where} has {name} of shape {list(tensor.shape)}, but this data needs {now}.")
