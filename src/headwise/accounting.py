"""What a run with privacy comes to: epsilon and delta, by the accountant of a maintained library."""

from __future__ import annotations

from typing import Any

from .averaging import Averaging
from .config import Experiment
from .errors import ConfigError
from .method import Method

ORDERS = (*(1 + k / 10 for k in range(1, 110)), *range(12, 64), *(2**k for k in range(6, 15)))
"""of Renyi's divergences, among which the accountant chooses"""


def account(experiment: Experiment, method: Method[Any, Any, Any, Any]) -> dict[str, Any]:
    """Epsilon and delta of a client against the server, who sees all its messages; nothing where nothing is protected.

    A client takes part in every round at worst, and the server knows when it does: that clients are drawn is no
    credit. What can't be accounted for is refused.
    """
    privacy = experiment.privacy
    if privacy.clip is None:
        return {}
    _refuse(experiment, method)
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise ConfigError("privacy.clip is set, but Opacus is not there: pip install 'headwise[privacy]'.") from error
    accountant = RDPAccountant()
    for _ in range(experiment.rounds):
        accountant.step(noise_multiplier=privacy.noise, sample_rate=1.0)
    epsilon = float(accountant.get_epsilon(privacy.delta, alphas=list(ORDERS)))
    return {"epsilon": epsilon, "delta": privacy.delta, "unit": "client", "against": "server"}


def _refuse(experiment: Experiment, method: Method[Any, Any, Any, Any]) -> None:
    name, clip = experiment.method.name, f"privacy.clip is {experiment.privacy.clip:g}"
    if not isinstance(method, Averaging):
        raise ConfigError(f"{clip}, but what {name} sends has no known sensitivity.")
    if experiment.buffers == "all":
        raise ConfigError(f"{clip}, but buffers is 'all', and BatchNorm's counters can't be protected.")
    if experiment.faults.policy == "retry":
        raise ConfigError(f"{clip}, but faults.on_failure is 'retry', and a client that answers again tells more.")
