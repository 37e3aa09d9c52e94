"""FedAvg's server half, for the many methods that change only the client half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, Literal, final

from .method import C, Central, Method, Reply
from .models.split import SplitModel
from .params import Params, mean
from .records import Record


class Shared(Record):
    """The part of the model that everybody shares."""

    w: Params


class Averaging(Method[Shared, C, Shared, Shared], Generic[C]):
    """The server keeps what is shared and replaces it by the clients' mean, weighted by their samples."""

    shares: ClassVar[Literal["", "body", "head"]] = ""
    """what travels: the whole model, its body or its head"""

    @final
    def server_init(self, central: Central) -> Shared:
        """The shared part of the initial model."""
        return Shared(central.init().params(self.shares))

    @final
    def broadcast(self, server: Shared, client: int, central: Central) -> Shared:
        """The same for everybody."""
        return server

    @final
    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        """w <- sum_k n_k/n w_k over this round's clients; a round without replies changes nothing."""
        if not replies:
            return server
        return Shared(mean((r.up.w for r in replies), (r.n for r in replies)))

    @final
    def global_model(self, server: Shared, central: Central) -> SplitModel | None:
        """The shared model, where the whole of it is shared."""
        return central.model(server.w) if self.shares == "" else None
