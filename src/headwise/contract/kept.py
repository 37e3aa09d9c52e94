"""What clients keep in most methods: nothing, a model, a head or a body; and what they begin and predict with then.

A method that keeps one of these needs no `client_init` and no `personalize` of its own.
"""

from __future__ import annotations

from typing import Any

from ..models.split import SplitModel
from ..params import Params
from ..records import Nothing, Record
from .benches import Local


class OwnModel(Record):
    """A client's own model: at first the initial one; it predicts with it.

    >>> OwnModel(Params(a=torch.zeros(2))).w
    Params(a: (2,))
    """

    w: Params


class OwnHead(Record):
    """A client's own head: at first the initial one; it predicts with it on the body that it was sent.

    >>> OwnHead(Params(a=torch.zeros(2))).h
    Params(a: (2,))
    """

    h: Params


class OwnBody(Record):
    """A client's own body: at first the initial one; it predicts with it under the head that it was sent.

    >>> OwnBody(Params(a=torch.zeros(2))).phi
    Params(a: (2,))
    """

    phi: Params


def begin(kind: type[Record], local: Local) -> Record:
    """What a client keeps before it first takes part."""
    if kind is Nothing:
        return Nothing()
    if kind not in (OwnModel, OwnHead, OwnBody):
        raise NotImplementedError(f"write `client_init`, which returns the first {kind.__name__} of a client")
    part = {OwnModel: "", OwnHead: "head", OwnBody: "body"}[kind]
    return kind(local.init().state(part))  # pyright: ignore[reportCallIssue]


def assemble(me: Record, down: Any, local: Local) -> SplitModel:
    """The model of what a client keeps and of `down.w`; both together must be a whole model."""
    if isinstance(me, OwnModel):
        return local.model(me.w)
    own = me.h if isinstance(me, OwnHead) else me.phi if isinstance(me, OwnBody) else Params()
    params = own | getattr(down, "w", Params())
    m = local.model(params)
    if missing := sorted(m.live().keys() - params.keys()):
        raise NotImplementedError(f"write `personalize`: {missing[0]!r} is neither sent nor kept")
    return m
