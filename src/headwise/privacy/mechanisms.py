"""The table of mechanisms, and how a run gets one: chosen by name or message, then rehearsed on single samples."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..contract.method import Method, record_types
from ..data.federated import Clients
from ..engine.driver import drive
from ..engine.events import ClientDone, Event
from ..engine.executors.local import Serial
from ..engine.mechanism import UNPROTECTED, Mechanism
from ..engine.plan import Plan
from ..errors import AccountingError, ClientError, ConfigError, nearest
from ..records import Nothing, fields_of
from ..settings.options import Privacy
from ..tasks.registry import kind_of
from .dp_sgd import DPSGD
from .gaussian import NoisyMeans, NoisyModels

MECHANISMS: tuple[type[Mechanism], ...] = (NoisyModels, NoisyMeans, DPSGD)


def mechanism_for(settings: Privacy, method: Method[Any, Any, Any, Any]) -> Mechanism:
    """The one that `privacy.mechanism` names, or the first that can protect what the method's clients send."""
    if settings.clip is None:
        return UNPROTECTED
    names = {kind.name: kind for kind in MECHANISMS}
    if settings.mechanism is not None and settings.mechanism not in names:
        raise ConfigError(f"privacy.mechanism is {settings.mechanism!r}: {nearest(settings.mechanism, names)}")
    up = record_types(type(method)).up
    for kind in MECHANISMS:
        if settings.mechanism in (None, kind.name) and kind.unit == settings.level and issubclass(up, kind.messages):
            return kind(settings.clip, settings.noise, settings.delta, settings.source)
    raise AccountingError(f"what it sends ({', '.join(fields_of(up))}) has no known sensitivity")


ROUNDS = 2
"""some methods do more once a client has its own model"""


def protect_plan(plan: Plan) -> Plan:
    """The plan with its mechanism; raises `ConfigError` if the method's privacy can't be accounted for."""
    experiment = plan.experiment
    privacy = experiment.privacy
    name = experiment.method.name
    if privacy.clip is None:
        return plan
    clip = f"privacy.clip is {privacy.clip:g}" + f" and privacy.level {privacy.level!r}" * (privacy.level != "client")
    if experiment.buffers == "all":
        raise ConfigError(f"{clip}, but buffers is 'all', and BatchNorm statistics can't be protected.")
    if experiment.faults.reaction == "retry":
        raise ConfigError(
            f"{clip}, but faults.on_failure is 'retry', and every further answer of a client reveals more."
        )
    if record_types(type(plan.method)).census is not Nothing:
        raise ConfigError(f"{clip}, but clients of {name} answer a census, which no mechanism protects.")
    try:
        plan = replace(plan, privacy=mechanism_for(privacy, plan.method))
        return replace(plan, epochs_accounted=rehearse(plan))
    except AccountingError as error:
        raise ConfigError(f"{clip}, but {name} can't be accounted for: {error}.") from error


def rehearse(plan: Plan) -> int:
    """Let a few clients with one sample each train for two rounds; return the epochs per round.

    Raises `AccountingError` for a method or network whose privacy can't be accounted for. One that only misbehaves in
    later rounds is stopped there, by the same rules.
    """
    if find_spec("opacus") is None:
        raise ConfigError("privacy.clip is set, but Opacus is not installed: pip install 'headwise[privacy]'.")
    epochs = [0]

    def count(event: Event) -> None:
        if isinstance(event, ClientDone):
            epochs.append(event.samples)  # with one sample, samples are epochs

    try:
        small = _shrink(plan)
        drive(small, Serial(small), [count], rounds=ROUNDS)
        return max(epochs)
    except ClientError as error:
        raise error.__cause__ if isinstance(error.__cause__, AccountingError) else error from None


def _shrink(plan: Plan) -> Plan:
    """The plan with at least two clients, one or more per architecture, and with blank samples."""
    count = max(2, len(plan.models))
    task = plan.data.task
    x = torch.zeros(count, *task.shape, dtype=torch.int64 if task.vocabulary else torch.float32)
    data = Clients(task, x, kind_of(task).make_blank(task, count), np.arange(1, count + 1).repeat(3).reshape(-1, 3))
    whole = replace(plan.experiment.train, drop_last=False)  # or one sample would give no batch
    return replace(plan, data=data).with_settings(train=whole).for_rehearsal()
