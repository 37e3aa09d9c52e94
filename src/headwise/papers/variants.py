"""A table with settings other than the paper's: fixed ones, or a sweep over several values of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from ..settings.experiment import Choice, find_class
from ..settings.fields import field_types
from ..settings.overrides import override
from .cells import RUN, Ask, recipe_of
from .schema import Changes, Printed

CHOSEN = {"seed": "--seeds", "method": "--methods", "engine": "--workers"}
"""settings with a command-line option of their own"""


def with_settings(ask: Ask, settings: Sequence[str]) -> Ask:
    """Every cell with these settings, each like ``train.lr=0.1``."""
    found = _tree(ask, settings, "set")
    return dataclasses.replace(ask, settings=Changes(found), set_by_hand=(*ask.set_by_hand, *settings))


def swept(ask: Ask, sweep: str) -> Ask:
    """Each trained column, once per value of ``method.beta=0.1,0.3``; the paper prints nothing for these."""
    path, sign, values = sweep.partition("=")
    each = [f"{path.strip()}={v.strip()}" for v in values.split(",") if v.strip()]
    if not sign or len(each) < 2 or len({*each}) < len(each):
        raise ConfigError(f"sweep is {sweep!r}, but must look like method.beta=0.1,0.3: two values or more, each once.")
    columns = tuple(
        dataclasses.replace(c, name=f"{c.name}, {text}", sweep=Changes(_tree(ask, [text], "sweep")))
        for c in ask.columns
        if c.measure in RUN
        for text in each
    )
    if not columns:
        raise ConfigError(f"sweep is {sweep!r}, but nothing is trained in these columns of {ask.name}.")
    nothing = (Printed("- not printed"),) * len(columns)
    names = {c.name for c in columns}
    rows = tuple((Printed(method), *nothing) for method in ask.table.methods)
    notes = tuple(n for n in ask.table.notes if not n.columns or names & {*n.columns})
    table = dataclasses.replace(ask.table, columns=columns, rows=rows, notes=notes)
    return dataclasses.replace(ask, table=table, columns=columns, set_by_hand=(*ask.set_by_hand, sweep))


def _tree(ask: Ask, settings: Sequence[str], what: str) -> dict[str, Any]:
    """The settings as tables; a method's option must exist in at least one of the methods that are run."""
    found = override({}, settings)
    for name, instead in CHOSEN.items():
        if name in found and not (name == "method" and isinstance(found[name], Mapping)):
            raise ConfigError(f"{what} is {settings[0]!r}, but {name} is chosen by {instead}.")
    for option in found.get("method", {}):
        if not any(option in field_types(find_class("method", _name(ask, m))) for m in ask.methods):
            raise ConfigError(f"{what} is 'method.{option}', but none of {', '.join(ask.methods)} has that option.")
    return found


def _name(ask: Ask, method: str) -> str:
    return Choice.parse(recipe_of(ask, method).method, "method").name.partition("@")[0]  # without its preset
