"""Checks of what a method makes of clients that fail."""

from __future__ import annotations

from contextlib import closing

from ..engine.executors.faulty import Faulty
from ..engine.executors.serial import Serial
from ..engine.plan import Plan
from ..records import pack
from ..settings.options import Faults, Inject
from .behaviour import need
from .toy import AnyMethod, Recorder, play, toy_plan

REFUSED = ("error", "stale", "nan")
"""clients that raise, answer for another round, or send what is not a number"""


def refused_replies_leave_no_trace(method: AnyMethod) -> None:
    """A round without those who failed is that of the others, in which nobody else was asked; and a run goes on."""
    silent = _played(method, "drop=0.4", rounds=1).trace()
    for kind in REFUSED:
        found = _played(method, f"{kind}=0.4", rounds=1).trace()
        need(found.server == silent.server, f"clients whose fault was {kind!r} change the server's state")
    last = _played(method, "drop=0.3,error=0.1,stale=0.1,nan=0.2,twice=0.1", rounds=3).ended[-1]
    values = [t for t in pack(last.progress.server).tensors.values() if t.is_floating_point()]
    need(all(bool(t.isfinite().all()) for t in values), "the server's state is not finite after rounds with failures")


def _played(method: AnyMethod, inject: str, rounds: int) -> Recorder:
    plan = _failing(toy_plan(method, rounds=rounds), inject)
    with closing(Faulty(Serial(plan), plan)) as executor:
        return play(plan, executor)


def _failing(plan: Plan, inject: str) -> Plan:
    faults = Faults(inject=Inject.parse(inject, "faults.inject"), min_replies=0)
    return plan.changed(faults=faults)
