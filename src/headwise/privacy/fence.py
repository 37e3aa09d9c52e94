"""A client's bench of which only named primitives can be used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from ..contract.benches import Local
from ..errors import AccountingError


class _Fence:
    """Refuses whatever is not allowed, so that a primitive nobody has thought about yet is refused, too."""

    def __init__(self, inner: object, allows: Collection[str], refusal: Callable[[str], str]) -> None:
        self._inner, self._allows, self._refusal = inner, allows, refusal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in dir(self._inner):
            raise AttributeError(f"a client's bench has no {name!r}")
        if name not in self._allows:
            raise AccountingError(self._refusal(name))
        return getattr(self._inner, name)


def fenced(local: Local, allows: Collection[str], instead: Mapping[str, Any], refusal: Callable[[str], str]) -> Local:
    """This bench with these primitives alone, and with others `instead` of its own; `refusal` words the error."""
    fence = _Fence(local, allows, refusal)
    vars(fence).update(instead)
    return cast(Local, fence)
