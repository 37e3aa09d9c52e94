"""The table of mechanisms, and how a run chooses one."""

from __future__ import annotations

from typing import Any

from ..contract.method import Method, record_types
from ..engine.mechanism import UNPROTECTED, Mechanism
from ..errors import AccountingError, ConfigError, nearest
from ..records import fields_of
from ..settings.options import Privacy
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
