"""What a run's clients are called, beside their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..disk.files import read_json
from ..errors import RunError, nearest

LISTED = 1000
"""names among which a similar one is looked for: with more, it takes seconds"""


def names_in(partition: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The clients' names in the order of their numbers; empty if the data has none."""
    names = tuple(partition.get("names", ()))
    counted = len(partition["train"]) or len(names)  # sites may have names, but not tell what they have
    if names and (len(names) != counted or len(set(names)) < len(names)):
        raise RunError(f"{path} is damaged: it must have one name for each client.")
    return names


def called(c: int, names: Sequence[str]) -> str:
    """A client's number, and its name if it has one."""
    return f"{c} ({names[c]})" if names else str(c)


def site_names(homes: Mapping[int, int], sites: Mapping[int, str], clients: int) -> tuple[str, ...]:
    """Each client's site, with its number where a site has several or is not here yet; empty if names clash."""
    found = [sites.get(homes.get(c, -1), "client") for c in range(clients)]
    often = Counter([*found, "client"])
    names = tuple(f"{site} {c}" if often[site] > 1 else site for c, site in enumerate(found))
    return names if len(set(names)) == clients and set(found) != {"client"} else ()


def names_at_sites(path: Path, clients: int) -> tuple[str, ...]:
    """The same from a run's sites.json, which also has the sites that came later; empty without one."""
    found = read_json(path, absent=b"{}")
    try:
        homes, sites = ({int(k): v for k, v in found.get(name, {}).items()} for name in ("homes", "names"))
        return site_names(homes, sites, clients)
    except (AttributeError, TypeError, ValueError):
        raise RunError(f"{path} is damaged: it does not name the clients' sites.") from None


def number_of(who: str | int, names: Sequence[str], clients: int, path: Path) -> int:
    """The number of the client with this name or number; a name comes first, even if it is a number."""
    if str(who) in names:
        return names.index(str(who))
    c = int(who) if isinstance(who, str) and who.isascii() and who.isdigit() and len(who) < 10 else who
    if isinstance(c, int) and not isinstance(c, bool) and 0 <= c < clients:
        return c
    hint = f"its clients are 0 to {clients - 1}."
    if names and isinstance(who, str):
        hint = nearest(who, names, "its clients are") if len(names) <= LISTED else f"it has {len(names):,} others."
    raise RunError(f"{path} has no client {who!r}: {hint}")
