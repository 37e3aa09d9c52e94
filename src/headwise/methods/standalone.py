"""Local training — every client by itself, with its own data; the yardstick that every federated method must beat.

A client trains whenever it is selected, as often as with any other method, and never sends anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.authoring import Central, Local, Method, Nothing, OwnModel, Reply, Update


@dataclass(frozen=True)
class Standalone(Method[Nothing, OwnModel, Nothing, Nothing]):
    """Every client trains its own model, alone."""

    family = "no sharing"
    travels = "nothing"
    stays = "whole model"
    sums = "clients"
    heterogeneous = "any"

    def server_init(self, central: Central) -> Nothing:
        return Nothing()

    def broadcast(self, server: Nothing, client: int, central: Central) -> Nothing:
        return Nothing()

    def aggregate(self, server: Nothing, replies: Sequence[Reply[Nothing]], central: Central) -> Nothing:
        return Nothing()

    def local_update(self, me: OwnModel, down: Nothing, local: Local) -> Update[Nothing, OwnModel]:
        m = local.model(me.w)
        local.sgd(m)
        return Update(Nothing(), OwnModel(m.state()), m)
