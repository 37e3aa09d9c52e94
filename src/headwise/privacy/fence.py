"""A client's bench restricted to an allow-list of primitives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from ..contract.benches import Local
from ..errors import AccountingError


class _Fence:
    """Refuses whatever is not on the list, so a new primitive is refused until somebody allows it."""

    def __init__(self, inner: object, allows: Collection[str], refusal: Callable[[str], str]) -> None:
        self._inner, self._allows, self._refusal = inner, allows, refusal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in dir(self._inner):
            raise AttributeError(f"a client's bench has no {name!r}")
        if name not in self._allows:
            raise AccountingError(self._refusal(name))
        return getattr(self._inner, name)


def fenced(local: Local, allows: Collection[str], instead: Mapping[str, Any], refusal: Callable[[str], str]) -> Local:
    """This bench with only these primitives, some replaced by those in `instead`; `refusal(name)` words the error."""
    fence = _Fence(local, allows, refusal)
    vars(fence).update(instead)
    return cast(Local, fence)
