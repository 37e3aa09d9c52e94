"""The scene of an audit: a run as its server and clients see it, and the messages that it would send next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..app.inputs import with_remembered
from ..app.launch import data_folder
from ..app.prepare import prepare
from ..contract.benches import Predictor
from ..contract.method import record_types
from ..data.federated import Clients, Samples
from ..engine.client.jobs import Job, handle, make_personal_model
from ..engine.client.state import ClientState
from ..engine.host import use_one_thread
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench
from ..errors import RunError
from ..params import Params
from ..records import Record
from ..runs.checkpoint import Checkpoints
from ..runs.query import Run
from ..settings.experiment import experiment_from


@dataclass(frozen=True)
class Scene:
    """A run after its last round."""

    run: Run
    plan: Plan
    t: int
    """completed rounds"""
    server: Record
    states: Mapping[int, ClientState]
    """of the clients that have trained"""

    def train(self, client: int) -> Samples:
        return self.plan.data.client(client).train

    def others(self, client: int) -> Samples:
        """All other clients' training samples, which an attacker may have who knows the task but not this client."""
        parts = [self.train(c) for c in range(len(self.plan.data)) if c != client]
        return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


@dataclass(frozen=True)
class ClientMessage:
    """What a client was sent, what it answered, and what it then used."""

    down: Record
    up: Record
    n: int
    """the number of samples that it reported"""
    model: Predictor


class ModelChange(NamedTuple):
    before: Params
    """what the client was sent"""
    moved: Params
    """what it sent back minus `before`"""


class LabelRequests(ServerBench):
    """A server bench that records which clients' labels the method requests."""

    def __init__(self, plan: Plan, t: int) -> None:
        ServerBench.__init__(self, plan, t)
        self.disclosed: set[int] = set()

    def labels(self, client: int) -> tuple[int, ...]:
        self.disclosed.add(client)
        return ServerBench.labels(self, client)


@contextmanager
def scene_of(folder: Path, data_dir: Path | None = None) -> Iterator[Scene]:
    """The run in this folder with its own data; valid only inside the `with` block."""
    run = Run(folder)
    manifest = run.manifest
    experiment = with_remembered(experiment_from(manifest["experiment"]), folder)
    if experiment.engine.kind == "flower":
        raise RunError(f"{folder} has its clients at sites: an audit needs their data, which is not here.")
    _, plan, summary, _ = prepare(experiment, data_folder(data_dir or manifest["data_dir"]))
    if summary.hash != manifest["partition"]["hash"]:
        raise RunError(f"{folder} was run on different data from what is here now: it can't be audited.")
    with closing(Checkpoints(folder / "checkpoint", record_types(type(plan.method)))) as checkpoints, use_one_thread():
        is_running = run.ended == "unfinished"  # it may still be running, and replace files while they are read
        checkpoint = checkpoints.look() if is_running else checkpoints.load()
        if checkpoint is None:
            raise RunError(f"{folder} has no complete round to audit yet.")
        yield Scene(run, plan, checkpoint.progress.t, checkpoint.progress.server, checkpoint.states)


def make_message(scene: Scene, client: int, only: Tensor | None = None) -> ClientMessage:
    """What this client would send next; if `only` is given, trained on these samples in one batch and one epoch."""
    plan = scene.plan
    if only is not None:
        train = replace(plan.experiment.train, batch=len(only), epochs=1, steps=None, drop_last=False)
        plan = replace(plan, data=_keep_only(plan.data, client, only)).with_settings(train=train)
    down = plan.method.broadcast(scene.server, client, ServerBench(plan, scene.t))
    answer, state = handle(plan, Job("fit", client, scene.t, down, measure=False), scene.states.get(client))
    assert answer.up is not None and state is not None  # a failing client raises
    return ClientMessage(down, answer.up, answer.n, make_personal_model(plan, client, scene.t, state, down))


def load_personal_model(scene: Scene, client: int) -> Predictor:
    down = scene.plan.method.broadcast(scene.server, client, ServerBench(scene.plan, scene.t))
    return make_personal_model(scene.plan, client, scene.t, scene.states[client], down)


def find_change(scene: Scene, message: ClientMessage) -> ModelChange | None:
    """How a client changed what it was sent; None if it sends no parameters of the network.

    If what it sends is closer to zero than to what it was sent, it is not a model but a gradient.
    """
    shapes = {k: t.shape for k, t in scene.plan.common.state().items()}
    for after in filter(None, _params(message.up)):
        before = next((v for v in _params(message.down) if v.keys() == after.keys()), None)
        if before is not None and all(shapes.get(k) == t.shape == before[k].shape for k, t in after.items()):
            moved = after - before
            return ModelChange(before, moved if moved.sq_norm() < after.sq_norm() else -1.0 * after)
    return None


def _params(record: Record) -> list[Params]:
    return [v for v in vars(record).values() if isinstance(v, Params)]


def _keep_only(data: Clients, client: int, kept: Tensor) -> Clients:
    """The same clients, except that this one has only these training samples."""
    first = data.start(client)
    train, _, last = data.ends[client]
    index = torch.cat([torch.arange(first), first + kept, torch.arange(train, len(data.y))])
    less = train - first - len(kept)
    ends = data.ends - less * (data.ends >= train) * (np.arange(len(data)) >= client)[:, None]
    assert ends[client][2] == last - less
    weight = None if data.weight is None else data.weight[index]
    return replace(data, x=data.x[index], y=data.y[index], ends=ends, weight=weight)
