"""A run's privacy cost, epsilon and delta, computed by Opacus."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from ..engine.mechanism import Releases
from ..engine.plan import Plan
from ..errors import ConfigError

ORDERS = (*(1 + k / 10 for k in range(1, 110)), *range(12, 64), *(2**k for k in range(6, 15)))
"""orders of Renyi divergences to choose from; with sampling, the highest are slow and never the best"""
FAINT = 1e-3
NONE = 1e-100
"""below FAINT, noise earns no credit for sampling, as Opacus's sums may not converge; below NONE it is no noise"""


def account(plan: Plan) -> dict[str, Any]:
    """Epsilon and delta against a server that sees all messages; empty if nothing is protected.

    Assumes the worst: a client takes part in every round. The run's epsilon is the largest of any client.
    """
    privacy = plan.privacy
    if not privacy.protects:
        return {}
    rounds = [privacy.cost(plan, c).times(plan.experiment.rounds) for c in plan.clients]
    each = [compose((spent,), privacy.delta) for spent in rounds]
    terms = {"delta": privacy.delta, "unit": privacy.unit, "against": "server", "source": privacy.source}
    clients = {} if privacy.hides_sizes else {"clients": each}  # otherwise all clients cost the same
    return {"epsilon": max(each), "relation": privacy.relation, **terms, **clients}


@cache
def compose(releases: tuple[Releases, ...], delta: float) -> float:
    """Epsilon of all these releases, each chosen with knowledge of the earlier ones: Renyi divergences add up."""
    history = [m if m.noise >= FAINT else m._replace(rate=1.0) for m in releases if m.steps]
    if not history:
        return 0.0
    if (faintest := min(m.noise for m in history)) < NONE:
        raise ConfigError(f"privacy.noise is {faintest:g}, but below {NONE:g} there is no epsilon to compute.")
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [tuple(m) for m in history]
    orders = [a for a in ORDERS if a <= 512 or all(m.rate == 1 for m in history)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # the bound holds, even if another order were tighter
        return max(0.0, float(accountant.get_epsilon(delta, alphas=orders)))
