"""What a run with privacy comes to: epsilon and delta, by the accountant of a maintained library."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from .config import Experiment
from .engine.plan import Plan
from .engine.private import batch_size, steps_per_epoch
from .engine.rehearsal import rehearse
from .errors import AccountingError, ConfigError
from .method import Method, record_types
from .records import Nothing

ORDERS = (*(1 + k / 10 for k in range(1, 110)), *range(12, 64), *(2**k for k in range(6, 15)))
"""of Renyi's divergences, among which the accountant chooses; the highest take long for samples, and are not best"""
FAINT, NONE = 1e-3, 1e-100
"""noise below which sampling earns no credit, as sums in Opacus may not end there; and which is none at all"""


class Mechanism(NamedTuple):
    """So many steps of Gaussian noise, each on a Poisson sample at this rate."""

    noise: float
    rate: float
    steps: int

    def times(self, rounds: int) -> Mechanism:
        """As often as this."""
        return self._replace(steps=self.steps * rounds)


def account(experiment: Experiment, method: Method[Any, Any, Any, Any], plan: Plan | None = None) -> dict[str, Any]:
    """Epsilon and delta against the server, who sees all messages; nothing where nothing is protected.

    A client takes part in every round at worst, and the server knows when it does: that clients are drawn is no
    credit. That examples are drawn is one: each by itself in every step, and nobody is told. Where they are what is
    protected, the rehearsed plan is needed: it knows the clients' sizes.
    """
    privacy = experiment.privacy
    if privacy.clip is None:
        return {}
    found = {"delta": privacy.delta, "unit": privacy.level, "against": "server", "source": privacy.source}
    if not privacy.per_example:
        relation = "all data of one client replaced by any other"
        once = Mechanism(privacy.noise, 1.0, _messages(method))
        return {"epsilon": composed((once.times(experiment.rounds),), privacy.delta), "relation": relation, **found}
    if plan is None or plan.epochs_accounted is None:
        raise ConfigError("privacy.level is 'example', but how many examples each client has is not known here.")
    rounds = [mechanism(plan, c).times(experiment.rounds) for c in range(len(plan.data))]
    each = [composed((spent,), privacy.delta) for spent in rounds]
    relation = "one example of a client without effect, the number of its examples known"
    return {"epsilon": max(each), "relation": relation, **found, "clients": each}


def mechanism(plan: Plan, client: int) -> Mechanism:
    """What one round of a run with privacy comes to for this client."""
    noise, messages = plan.privacy.noise, _messages(plan.method)
    if not plan.privacy.per_example:
        return Mechanism(noise, 1.0, messages)
    n = plan.data.sizes(client)[0]
    if not n:  # of clients elsewhere nothing is known, and they answer for themselves
        return Mechanism(noise, 1.0, 0)
    steps = messages * (plan.epochs_accounted or 0) * steps_per_epoch(n, plan.train)
    return Mechanism(noise, batch_size(n, plan.train) / n, steps)


def _messages(method: Method[Any, Any, Any, Any]) -> int:
    """That a client sends in a round: one, or none."""
    return 0 if record_types(type(method)).up is Nothing else 1


def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Of so many steps of Gaussian noise, each on a Poisson sample at this rate."""
    return composed((Mechanism(noise, rate, steps),), delta)


@cache
def composed(mechanisms: tuple[Mechanism, ...], delta: float) -> float:
    """Of all of these together, each chosen in knowledge of what those before it told: Renyi's divergences add up."""
    history = [m if m.noise >= FAINT else m._replace(rate=1.0) for m in mechanisms if m.steps]
    if not history:
        return 0.0
    if (faintest := min(m.noise for m in history)) < NONE:
        raise ConfigError(f"privacy.noise is {faintest:g}, but below {NONE:g} there is no epsilon to reckon.")
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [tuple(m) for m in history]
    orders = [a for a in ORDERS if a <= 512 or all(m.rate == 1 for m in history)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # the bound holds; another order might be tighter
        return max(0.0, float(accountant.get_epsilon(delta, alphas=orders)))


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
