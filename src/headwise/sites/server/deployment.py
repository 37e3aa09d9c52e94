"""The server process of a run whose clients are at sites: it has the facts that sites share in place of their data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...app.launch import Backend, run_or_resume
from ...app.prepare import Prepared, floors_of, plan_for, with_measured_floor
from ...contract.method import record_types
from ...data.federated import clients_at_sites, task_at_sites
from ...data.own.description import PARTS
from ...data.splits import Floor, Summary, measure_floor, summarize_spread
from ...disk.files import append_lines, digest, make_folder, read_json, write_json
from ...disk.jsontext import to_json
from ...engine.client.state import States
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...models.base import Task
from ...records import Packed, from_bytes, to_bytes
from ...runs.manifest import name_at_sites, read_manifest
from ...runs.query import name_by_site
from ...settings.choices import OWN
from ...settings.experiment import Experiment, experiment_from
from ...settings.fields import build
from ..facts import STATISTICS, ClientFacts, pool_sums, resolve_for_sites, write_for_sites
from .control import progress_file
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

    def accept(self, client: int, digest: str) -> None:
        self.states[client] = to_bytes(Packed({}, {"digest": digest}))


def serve(transport: Transport, config: dict[str, Any]) -> None:
    """Start or resume a run with clients at sites; events are written to `progress_file`."""
    order = json.loads(config["order"])
    out = Path(order["out"])
    why = "the server process failed: see Flower's log."

    def say(line: str) -> None:
        append_lines(progress_file(out), [{"line": line}])

    make_folder(out.parent)
    try:
        experiment = resolve_for_sites(experiment_from(order["experiment"]))
        _serve(transport, experiment, out, float(order["wait"]), order["sites"], say)
        why = ""
    except HeadwiseError as error:
        why = str(error)
        raise
    finally:
        append_lines(progress_file(out), [{"ended": why}])


def _serve(
    transport: Transport,
    experiment: Experiment,
    out: Path,
    wait: float,
    names: Iterable[str],
    say: Callable[[str], None],
) -> None:
    clients = range(experiment.clients or 0)
    task = experiment.task
    path = out / "sites.json"
    nodes = Nodes(transport, experiment, _read_roster(path), say)
    nodes.registered = frozenset(names)
    begun = path.exists()
    missing = nodes.wait(clients, wait, first=not begun)
    if nodes.clash and not begun:
        raise RunError(f"{nodes.clash}.")
    if missing and (experiment.faults.reaction == "stop" or len(missing) == len(clients)):
        client, why = next(iter(missing.items()))
        raise RunError(f"client {client} can't take part: {why.rstrip('.')}.")
    experiment = pool_sums(experiment, nodes.known.facts)
    if (out / "manifest.json").exists():  # sites that came later are not part of the sums that it began with
        before = experiment_from(read_manifest(out)["experiment"])
        experiment = replace(experiment, data=before.data) if before.data.name == OWN else experiment

    def make_executor(experiment: Experiment, plan: Plan, states: States, folder: Path) -> Remote:
        nodes.keep = partial(_write_roster, path)
        nodes.keep(nodes.roster)
        run = name_at_sites(folder)
        say(f"sites keep their models of this run as {run}")

        def note(row: dict[str, Any]) -> None:
            append_lines(folder / "sites.jsonl", [{**row, "site": nodes.name_of(row["node"])}])

        # as it was introduced to the sites, which know their task
        text = write_for_sites(replace(experiment, task=task))
        index = Digests(states, type(plan.method))
        return Remote(plan, text, run, nodes, index, workers=len(clients), note=note)

    backend = Backend(lambda experiment: prepare_from(experiment, nodes.roster), make_executor)
    run_or_resume(experiment, out, backend=backend)


def _write_roster(path: Path, roster: Roster) -> None:
    facts = [asdict(each) for _, each in sorted(roster.facts.items())]
    write_json(path, {"facts": facts, "homes": roster.homes, "names": dict(roster.names)})


def _read_roster(path: Path) -> Roster:
    """The known facts about the sites of a resumed run."""
    if not path.exists():
        return Roster({}, {})
    values = read_json(path)
    facts = [build(ClientFacts, each) for each in values["facts"]]
    homes = {int(client): int(node) for client, node in values["homes"].items()}
    return Roster({f.client: f for f in facts}, homes, {int(n): str(name) for n, name in values["names"].items()})


def prepare_from(experiment: Experiment, roster: Roster) -> Prepared:
    """What a run needs, from the facts that sites share: its clients have no samples."""
    experiment = resolve_for_sites(experiment)
    count = experiment.clients or 0
    facts = roster.facts
    statistics = experiment.data.options.get(STATISTICS, "")
    task = task_at_sites(next(iter(facts.values())).task, statistics, experiment.target_range)
    experiment = replace(experiment, task=task.kind)
    trains = {c: each.labels[0] for c, each in facts.items() if each.labels is not None}
    labels = {c: tuple(k for k, n in enumerate(counts) if n) for c, counts in trains.items()}
    sizes = [facts[c].sizes if c in facts else (0, 0, 0) for c in range(count)]
    names = name_by_site(roster.homes, roster.names, count)
    plan = plan_for(experiment, clients_at_sites(task, sizes, labels, names))
    counts = _histograms(facts, count)
    named = {"names": list(names)} if names else {}
    summary = with_measured_floor(_summarize(facts, count, task, counts), plan, counts)
    return Prepared(experiment, plan, summary, {**counts, **named, **floors_of(plan, counts)})


def _histograms(facts: Mapping[int, ClientFacts], count: int) -> dict[str, list[list[int]]]:
    """Samples per class for each client; empty unless every site shares them."""
    rows = [labels for c in range(count) if c in facts and (labels := facts[c].labels) is not None]
    if len(rows) < count:
        return {part: [] for part in PARTS}
    return {part: [list(row[k]) for row in rows] for k, part in enumerate(PARTS)}


def _summarize(
    facts: Mapping[int, ClientFacts], count: int, task: Task, histograms: Mapping[str, list[list[int]]]
) -> Summary:
    """The hash covers only the number of clients and the task, since sites may join later."""
    train, val, test = (sum(each.sizes[k] for each in facts.values()) for k in range(3))
    counts = {part: np.array(rows, np.int64) for part, rows in histograms.items()}
    classes = np.array([task.classes])
    floor = Floor(None, None)
    if histograms["train"]:
        classes = (counts["train"] + counts["val"] + counts["test"] > 0).sum(1)
        floor = measure_floor(counts["train"], counts["test"])
    form = digest(to_json([count, task.shape, task.classes, task.vocabulary, task.kind]).encode())
    sizes = summarize_spread(np.array([sum(each.sizes) for each in facts.values()]))
    return Summary(count, train, val, test, sizes, summarize_spread(classes), floor, form)
