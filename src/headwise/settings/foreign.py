"""An experiment that somebody else wrote: parsed by a grammar of names and numbers before anything else looks at it.

No name in it can be a path, a module or code, so nothing on this machine is looked up, read or imported because of it,
and the error that refuses it depends on its text alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .experiment import Experiment, experiment_from, literal

LARGEST = 2 * 10**7
"""most characters of an experiment: it may hold sums for preprocessing, which have their own parser and bound"""
DEEPEST = 6
"""tables and lists within each other"""
CHOICES = ("method", "data", "partition", "model", "server_model")
FREE = (("data", "statistics"), ("data", "classes"))
"""texts that are compared or parsed elsewhere, and never looked up"""
EMPTY = (("sampling", "trace"), ("origin", "run"))
"""files and folders of the server's own"""

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_NUMBER = r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?"
_VALUE = re.compile(rf"(?:{_NAME}|{_NUMBER}|)", re.ASCII)
_CHOSEN = re.compile(rf"{_NAME}(?:@{_NAME})?", re.ASCII)
_SPLIT = re.compile(r"[a-z]{1,16}|(?:[a-z]{1,16}:)?[0-9]{1,9}(?:[/:][0-9]{1,9}){1,2}", re.ASCII)
_FAULTS = re.compile(r"(?:[a-z]{1,16}(?:=[0-9.]{1,24})?(?:, ?|$)){0,20}", re.ASCII)


def read_foreign(text: str) -> Experiment:
    """The experiment in a message or a file from elsewhere (JSON)."""
    if len(text) > LARGEST:
        raise ConfigError(f"it has {len(text):,} characters, but at most {LARGEST:,} are read.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("it is not valid JSON.") from error
    return parse_foreign(values)


def parse_foreign(values: Any) -> Experiment:
    """From plain values that somebody else wrote."""
    if not isinstance(values, Mapping):
        raise _refusal("it")
    return experiment_from({key: _field(key, value) for key, value in values.items()})


def _field(key: Any, value: Any) -> Any:
    at = _check_key(key)
    if key not in CHOICES:
        return _copy_plain(value, (at,))
    if isinstance(value, list):
        return [_choice(each, f"{at}[{k}]") for k, each in enumerate(value)]
    return _choice(value, at)


def _choice(value: Any, at: str) -> Any:
    """A table with a name; the short form becomes one, so that no string is left to be taken for a file or a module."""
    if value is None or value == "":
        return value
    if isinstance(value, str):
        name, *rest = value.split(":")
        pairs = [part.partition("=") for part in rest]
        options = {k.replace("-", "_"): literal(v) if _fits(_VALUE, v) else v for k, sign, v in pairs if sign}
        value = {"name": name, "values": [k for k, sign, _ in pairs if not sign], **options}
    if not isinstance(value, Mapping) or not _fits(_CHOSEN, value.get("name")):
        raise _refusal(at)
    return {_check_key(k): v if k == "name" else _copy_plain(v, (at, k)) for k, v in value.items()}


def _copy_plain(value: Any, at: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if len(at) <= DEEPEST and isinstance(value, Mapping):
        return {_check_key(k): _copy_plain(v, (*at, k)) for k, v in value.items()}
    if len(at) <= DEEPEST and isinstance(value, (list, tuple)):
        if at in FREE and all(isinstance(each, str) for each in value):
            return list(value)
        return [_copy_plain(each, (*at, "")) for each in value]
    if isinstance(value, str) and _is_allowed(value, at):
        return value
    raise _refusal(".".join(filter(None, at)))


def _is_allowed(value: str, at: tuple[str, ...]) -> bool:
    if at in EMPTY:
        return not value
    if at == ("split",):
        return _fits(_SPLIT, value) or not value
    return at in FREE or _fits(_FAULTS if at == ("faults", "inject") else _VALUE, value)


def _check_key(key: Any) -> str:
    if not _fits(_KEY, key):
        raise _refusal("the name of a setting")
    return key


def _fits(grammar: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and grammar.fullmatch(value) is not None


def _refusal(at: str) -> ConfigError:
    return ConfigError(f"{at} must hold numbers and the names of what is installed, never a path or code.")
