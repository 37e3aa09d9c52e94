"""A check of how a method copes with clients that fail."""

from __future__ import annotations

from contextlib import closing

from ..engine.executors.faulty import Faulty
from ..engine.executors.serial import Serial
from ..records import pack
from ..settings.options import Faults, Inject
from .behaviour import need
from .toy import AnyMethod, Recorder, play, toy_plan

REFUSED = ("error", "stale", "nan")
"""clients that raise, answer for another round, or send NaN"""


def refused_replies_leave_no_trace(method: AnyMethod) -> None:
    """A failed client has the same effect as one that was never asked, and the run continues."""
    silent = _play(method, "drop=0.4", rounds=1).trace()
    for kind in REFUSED:
        trace = _play(method, f"{kind}=0.4", rounds=1).trace()
        need(trace.server == silent.server, f"clients whose fault was {kind!r} change the server's state")
    last = _play(method, "drop=0.3,error=0.1,stale=0.1,nan=0.2,twice=0.1", rounds=3).ended[-1]
    values = [t for t in pack(last.progress.server).tensors.values() if t.is_floating_point()]
    need(all(bool(t.isfinite().all()) for t in values), "the server's state is not finite after rounds with failures")


def _play(method: AnyMethod, inject: str, rounds: int) -> Recorder:
    faults = Faults(inject=Inject.parse(inject, "faults.inject"), min_replies=0)
    plan = toy_plan(method, rounds=rounds).with_settings(faults=faults)
    with closing(Faulty(Serial(plan), plan)) as executor:
        return play(plan, executor)
