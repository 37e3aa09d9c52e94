"""Standalone — every client alone with its own data; the yardstick that every federated method must beat.

A client trains whenever it is selected, as often as with any other method, and never sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from headwise.authoring import Central, Local, Method, Nothing, Params, Predictor, Record, Reply, Sums, Update


class Own(Record):
    """A client's own model."""

    w: Params


@dataclass(frozen=True)
class Standalone(Method[Nothing, Own, Nothing, Nothing]):
    """Every client trains its own model, alone."""

    family: ClassVar[str] = "no sharing"
    travels: ClassVar[str] = "nothing"
    stays: ClassVar[str] = "whole model"
    sums: ClassVar[Sums] = "clients"
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "any"

    def server_init(self, central: Central) -> Nothing:
        return Nothing()

    def broadcast(self, server: Nothing, client: int, central: Central) -> Nothing:
        return Nothing()

    def aggregate(self, server: Nothing, replies: Sequence[Reply[Nothing]], central: Central) -> Nothing:
        return Nothing()

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state())

    def local_update(self, me: Own, down: Nothing, local: Local) -> Update[Nothing, Own]:
        m = local.model(me.w)
        local.sgd(m)
        return Update(Nothing(), Own(m.state()), m)

    def personalize(self, me: Own, down: Nothing, local: Local) -> Predictor:
        return local.model(me.w)
