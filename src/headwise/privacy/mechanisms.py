"""The table of mechanisms, and how a run chooses one."""

from __future__ import annotations

from typing import Any

from ..contract.method import Method, record_types
from ..engine.mechanism import UNPROTECTED, Mechanism
from ..errors import AccountingError
from ..records import fields_of
from ..settings.options import Privacy
from .dp_sgd import DPSGD
from .noisy_means import NoisyMeans
from .noisy_models import NoisyModels

MECHANISMS: tuple[type[Mechanism], ...] = (NoisyModels, NoisyMeans, DPSGD)


def mechanism_for(settings: Privacy, method: Method[Any, Any, Any, Any]) -> Mechanism:
    """The first mechanism of this level that can protect what the method's clients send."""
    if settings.clip is None:
        return UNPROTECTED
    up = record_types(type(method)).up
    for kind in MECHANISMS:
        if kind.unit == settings.level and issubclass(up, kind.messages):
            return kind(settings.clip, settings.noise, settings.delta, settings.source)
    raise AccountingError(f"what it sends ({', '.join(fields_of(up))}) has no known sensitivity")
