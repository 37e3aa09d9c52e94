"""Checks that a run gives the same bits however it is executed, on the simulated CPU of `nervous` where possible."""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ..contract.method import record_types
from ..engine.client.state import encode_state
from ..engine.events import Event, RoundEnded
from ..engine.executors.local import Serial, Threads
from ..engine.executors.pool import Pool
from ..engine.plan import Plan
from ..runs.checkpoint import Checkpoints
from ..runs.files import Extent
from ..settings.choices import Choice
from .toy import AnyMethod, Recorder, need_equal, play, rebuild_plan, reference, reference_plan
from .watching import Apart, Backwards


def same_seed_same_bits(method: AnyMethod) -> None:
    """A second run of the same object gives the same bits, whatever the state of global generators."""
    first = reference(method)
    with _move_generators():
        again = play(reference_plan(method)).trace()
    text = "does it keep something on self, or draw from a generator that is not local.rng or central.rng?"
    need_equal(first, again, f"a second run differs: {text}")


def order_does_not_matter(method: AnyMethod) -> None:
    """Clients that work and answer in reverse order give the same bits."""
    plan = reference_plan(method)
    backwards = play(plan, Backwards(plan), nervous=True).trace()
    need_equal(reference(method, nervous=True), backwards, "the order of answers changes the result")


def group_does_not_matter(method: AnyMethod) -> None:
    """Clients in a group, or each at its own site, give the same bits on any CPU."""
    plan = reference_plan(method)
    apart = play(plan, Apart(plan), nervous=True).trace()
    text = "a client gives another result at its own site than among others"
    need_equal(reference(method, nervous=True), apart, text)


def pool_is_serial(method: AnyMethod) -> None:
    """One or two worker processes, and threads, give the same bits as a single process."""
    choice = Choice.parse(method, "method")
    plan = reference_plan(method)
    text = "gives another result than one process"
    for workers, nervous in ((1, False), (2, True)):
        with closing(Pool(plan, partial(rebuild_plan, choice.name, dict(choice.options), nervous), workers)) as pool:
            trace = play(plan, pool, nervous=nervous).trace()
        need_equal(reference(method, nervous=nervous), trace, f"pool of {workers} {text}")
    with closing(Threads(plan, 2)) as threads:
        need_equal(reference(method), play(plan, threads).trace(), f"threads of 2 {text}")


def resume_is_uninterrupted(method: AnyMethod) -> None:
    """A run resumed from its checkpoint, with a new method object, gives the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        first = _play_all_but_last(reference_plan(method), Path(folder))
        with closing(Checkpoints(Path(folder), record_types(type(method)))) as checkpoints:
            checkpoint = checkpoints.load()
            assert checkpoint is not None
            plan = reference_plan(dataclasses.replace(method))  # pyright: ignore[reportArgumentType]
            progress = dataclasses.replace(checkpoint.progress, last=first.ended[-1].progress.last)
            second = play(plan, Serial(plan, checkpoint.states), start=progress, nervous=True)
    second.ended[:0] = first.ended
    text = "resuming from a checkpoint gives another result than an uninterrupted run"
    need_equal(reference(method, nervous=True), second.trace(), text)


def _play_all_but_last(plan: Plan, folder: Path) -> Recorder:
    """All rounds of a run but the last, with checkpoints in this folder."""
    lines = {name: Extent(0, "") for name in ("rounds.jsonl", "clients.jsonl")}  # not written here

    def save(event: Event) -> None:
        if isinstance(event, RoundEnded):
            checkpoints.save(event.progress, {c: encode_state(event.states[c]) for c in event.changed}, lines)

    with closing(Checkpoints(folder, record_types(type(plan.method)))) as checkpoints:
        return play(plan, rounds=plan.experiment.rounds - 1, watching=save, nervous=True)


@contextmanager
def _move_generators() -> Iterator[None]:
    """Move the global generators to another point, and restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.seed() ^ 1)
        random.seed(random.random())
        np.random.seed(random.getrandbits(32))
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
