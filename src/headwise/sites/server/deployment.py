"""The server process of a run whose clients are at sites."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ...app.launch import Backend, run_or_resume
from ...app.prepare import Prepared
from ...contract.method import record_types
from ...disk.files import append_lines, failing_clearly, read_json, write_bytes, write_json
from ...engine.client.state import States
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import Packed, from_bytes, to_bytes
from ...runs.manifest import read_manifest
from ...settings.choices import OWN
from ...settings.experiment import Experiment, experiment_from
from ...settings.fields import build
from ..facts import ClientFacts, for_sites, pooled, written_for_sites
from ..states import run_at_sites
from .control import end_file, progress_file
from .elsewhere import prepared_from
from .nodes import Nodes, Roster, Transport
from .remote import Remote


class Receipts(States):
    """Digests in place of states, which stay at the sites: iterating yields no client, so nobody reads one."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Digests:
    """The `StateIndex` of a deployment; the run's checkpoints store it."""

    def __init__(self, before: States, method: type[Any]) -> None:
        self.states: States = Receipts(record_types(method).client)
        for client in before:
            if (data := before.encode(client)) is not None:
                self.states[client] = data

    def digest(self, client: int) -> str:
        data = self.states.encode(client)
        return "" if data is None else str(from_bytes(data).scalars["digest"])

    def took(self, client: int, digest: str) -> None:
        self.states[client] = to_bytes(Packed({}, {"digest": digest}))


def serve(post: Transport, config: dict[str, Any]) -> None:
    """Start or resume a run with clients at sites; how it ended goes to `end_file`."""
    asked = json.loads(config["order"])
    out = Path(asked["out"])
    why = "the server process failed: see Flower's log."
    with failing_clearly(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    try:
        experiment, say = for_sites(experiment_from(asked["experiment"])), partial(_say, progress_file(out))
        _serve(post, experiment, out, float(asked["wait"]), asked.get("sites", ()), say)
        why = ""
    except HeadwiseError as error:
        why = str(error)
        raise
    finally:
        write_bytes(end_file(out), why.encode())


def _serve(
    post: Transport, experiment: Experiment, out: Path, wait: float, names: Iterable[str], say: Callable[[str], None]
) -> None:
    clients, task = range(experiment.clients or 0), experiment.task
    path = out / "sites.json"
    nodes = Nodes(post, experiment, _known(path), say)
    nodes.registered = frozenset(names)
    begun = path.exists()
    missing = nodes.wait(clients, wait, first=not begun)
    if nodes.clash and not begun:
        raise RunError(f"{nodes.clash}.")
    if missing and (experiment.faults.reaction == "stop" or len(missing) == len(clients)):
        client, why = next(iter(missing.items()))
        raise RunError(f"client {client} can't take part: {why.rstrip('.')}.")
    experiment = pooled(experiment, nodes.known.told)
    if (out / "manifest.json").exists():  # sites that came later are not part of the sums that it began with
        before = experiment_from(read_manifest(out)["experiment"])
        experiment = dataclasses.replace(experiment, data=before.data) if before.data.name == OWN else experiment

    def executor(experiment: Experiment, plan: Plan, states: States, folder: Path) -> Remote:
        nodes.keep = partial(_keep, path)
        nodes.keep(nodes.roster)
        run = run_at_sites(folder)
        say(f"sites keep their models of this run as {run}")
        memory = Digests(states, type(plan.method))

        def note(row: dict[str, Any]) -> None:
            append_lines(folder / "sites.jsonl", [{**row, "site": nodes.name_of(row["node"])}])

        # as it was introduced to the sites, which know their task
        told = written_for_sites(dataclasses.replace(experiment, task=task))
        return Remote(plan, told, run, nodes, memory, workers=len(clients), note=note)

    def make(experiment: Experiment) -> Prepared:
        return prepared_from(experiment, nodes.roster)

    run_or_resume(experiment, out, backend=Backend(make, executor))


def _say(path: Path, line: str) -> None:
    """Tell `headwise deploy`."""
    append_lines(path, [{"said": line}])


def _keep(path: Path, known: Roster) -> None:
    told = [dataclasses.asdict(t) for _, t in sorted(known.told.items())]
    write_json(path, {"told": told, "homes": known.homes, "names": dict(known.names)})


def _known(path: Path) -> Roster:
    """What sites told before the run was resumed."""
    if not path.exists():
        return Roster({}, {})
    found = read_json(path)
    told = [build(ClientFacts, t) for t in found["told"]]
    names = {int(n): str(name) for n, name in found.get("names", {}).items()}
    return Roster({t.client: t for t in told}, {int(c): int(n) for c, n in found["homes"].items()}, names)
