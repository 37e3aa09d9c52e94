"""What a run with privacy comes to: epsilon and delta, by the accountant of a maintained library."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from .config import Experiment
from .engine.plan import Plan
from .engine.private import batch_size, steps_per_epoch
from .engine.rehearsal import rehearse
from .errors import AccountingError, ConfigError
from .method import Method, record_types
from .records import Nothing

ORDERS = (*(1 + k / 10 for k in range(1, 110)), *range(12, 64), *(2**k for k in range(6, 15)))
"""of Renyi's divergences, among which the accountant chooses; the highest take long for samples, and are not best"""


def account(experiment: Experiment, method: Method[Any, Any, Any, Any], plan: Plan | None = None) -> dict[str, Any]:
    """Epsilon and delta against the server, who sees all messages; nothing where nothing is protected.

    A client takes part in every round at worst, and the server knows when it does: that clients are drawn is no
    credit. That examples are drawn is one: each by itself in every step, and nobody is told. Where they are what is
    protected, the rehearsed plan is needed: it knows the clients' sizes.
    """
    privacy = experiment.privacy
    if privacy.clip is None:
        return {}
    rounds = 0 if record_types(type(method)).up is Nothing else experiment.rounds
    found = {"delta": privacy.delta, "unit": privacy.level, "against": "server", "source": privacy.source}
    if not privacy.per_example:
        relation = "all data of one client replaced by any other"
        return {"epsilon": epsilon(privacy.noise, 1.0, rounds, privacy.delta), "relation": relation, **found}
    if plan is None or plan.epochs_accounted is None:
        raise ConfigError("privacy.level is 'example', but how many examples each client has is not known here.")
    each: list[float] = []
    for n in (plan.data.sizes(c)[0] for c in range(len(plan.data))):
        steps = rounds * plan.epochs_accounted * steps_per_epoch(n, plan.train)
        # of clients elsewhere nothing is known, and they answer for themselves
        each.append(epsilon(privacy.noise, batch_size(n, plan.train) / n, steps, privacy.delta) if n else 0.0)
    relation = "one example of a client without effect, the number of its examples known"
    return {"epsilon": max(each), "relation": relation, **found, "clients": each}


@cache
def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Of so many steps of Gaussian noise, each on a Poisson sample at this rate."""
    if not steps:
        return 0.0
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    return float(accountant.get_epsilon(delta, alphas=[a for a in ORDERS if rate == 1 or a <= 512]))


def rehearsed(experiment: Experiment, plan: Plan) -> Plan:
    """The same plan, once it is known that its privacy can be accounted for; what can't be is refused."""
    privacy, name = experiment.privacy, experiment.method.name
    clip = f"privacy.clip is {privacy.clip:g}" + " and privacy.level 'example'" * privacy.per_example
    if experiment.buffers == "all":
        raise ConfigError(f"{clip}, but buffers is 'all', and BatchNorm's counters can't be protected.")
    if experiment.faults.policy == "retry":
        raise ConfigError(f"{clip}, but faults.on_failure is 'retry', and a client that answers again tells more.")
    try:
        return replace(plan, epochs_accounted=rehearse(plan))
    except AccountingError as error:
        raise ConfigError(f"{clip}, but {name} can't be accounted for: {error}.") from error
