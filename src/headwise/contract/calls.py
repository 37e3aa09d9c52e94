"""Calls a method's functions and checks what they return, so that a mistake is reported at its own line.

Without this, a forgotten `return` would surface somewhere in the engine, and a head sent by mistake in the average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..params import Params
from ..records import DTYPES, Record, fields_of, pack
from .benches import Central, Local, Predictor
from .method import Method, Reply, Update, record_types

AnyMethod = Method[Any, Any, Any, Any]


class WrongReturnError(TypeError):
    """A function of a method returned what it must not; `place` is where that function begins."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        super().__init__(f"{function.__name__} {what}")
        code = getattr(function, "__func__", function).__code__
        self.place = f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def server_init(method: AnyMethod, central: Central) -> Record:
    return _check_type(method.server_init(central), record_types(type(method)).server, method.server_init)


def broadcast(method: AnyMethod, server: Record, client: int, central: Central) -> Record:
    return _check_type(method.broadcast(server, client, central), record_types(type(method)).down, method.broadcast)


def aggregate(method: AnyMethod, server: Record, replies: Sequence[Reply[Any]], central: Central) -> Record:
    return _check_type(method.aggregate(server, replies, central), record_types(type(method)).server, method.aggregate)


def client_init(method: AnyMethod, local: Local) -> Record:
    return _check_type(method.client_init(local), record_types(type(method)).client, method.client_init)


def local_update(method: AnyMethod, me: Record, down: Record, local: Local) -> Update[Record, Record]:
    update = method.local_update(me, down, local)
    types = record_types(type(method))
    _check_type(update, Update, method.local_update)
    _check_type(update.up, types.up, method.local_update, "an Update whose up is ")
    _check_type(update.me, types.client, method.local_update, "an Update whose me is ")
    for name, kind in fields_of(type(update.up)).items():
        if method.fixed_layout and kind is Params and fields_of(type(down)).get(name) is Params:
            _check_names(method, name, getattr(update.up, name), getattr(down, name))
    return update


def personalize(method: AnyMethod, me: Record, down: Record, local: Local) -> Predictor:
    return _check_type(method.personalize(me, down, local), Callable, method.personalize)


def _check_type(value: Any, expected: Any, function: Callable[..., Any], whose: str = "") -> Any:
    if not isinstance(value, expected):
        was = "None" if value is None else _add_article(type(value))
        hint = ": a `return` may be missing" if value is None and not whose else ""
        raise WrongReturnError(
            function, f"must return {whose}{_add_article(expected)}, but returned {whose and 'one with '}{was}{hint}"
        )
    if isinstance(value, Record):
        for name, t in pack(value).tensors.items():
            if t.dtype not in DTYPES:
                raise WrongReturnError(function, f"returned {name!r} as {t.dtype}, which a record can't hold")
    return value


def _add_article(kind: type[Any]) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _check_names(method: AnyMethod, field: str, sent: Params, got: Params) -> None:
    """Parameters that go back in the field they came in must be the same ones, if layouts are fixed."""
    if more := sorted(sent.keys() - got.keys()):
        raise WrongReturnError(method.local_update, f"sends {more[0]!r} in {field!r}, but was not sent it")
    if less := sorted(got.keys() - sent.keys()):
        raise WrongReturnError(method.local_update, f"does not send {less[0]!r} in {field!r}, but was sent it")
    for k in sent:
        if sent[k].shape != got[k].shape:
            shapes = f"{tuple(sent[k].shape)}, but was sent {tuple(got[k].shape)}"
            raise WrongReturnError(method.local_update, f"sends {k!r} in {field!r} in the shape {shapes}")
