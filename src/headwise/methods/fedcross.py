"""FedCross — Hu et al., *FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation*, ICDE 2024.
https://arxiv.org/abs/2210.08285

    paper    here       meaning
    W        models     K middleware models, each trained by one of a round's clients
    v_i      trained    middleware model i after training
    co(i)    _partner   the model that i is combined with
    alpha    alpha      how much of itself a model keeps

    (1)  w_i = alpha v_i + (1 - alpha) v_co(i)
    (2)  the global model, which is only used to predict, is the mean of all w_i

From its abstract and PFLlib's file (https://github.com/TsingZ0/PFLlib, `servercross.py`); the numbers are ours. K is
the number of clients in a round. Similarity is the cosine of all parameters; PFLlib adds up cosines of pairs of
tensors. A model whose client failed stays as it was.

Departs from it: models move on by one client per round instead of being shuffled (PFLlib: as the clients are drawn).
The acceleration by a first stage of plain averaging is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch.nn.functional import cosine_similarity

from headwise.authoring import (
    Central, Local, Method, Nothing, Params, Record, Reply, Shared, SplitModel, Unit, Update, mean,
)  # fmt: skip


class Server(Record):
    """The middleware models, by their number."""

    models: dict[int, Params]


@dataclass(frozen=True)
class FedCross(Method[Server, Nothing, Shared, Shared]):
    """As many models as a round has clients travel from client to client, and each borrows a little from another."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"

    alpha: Unit = 0.9
    """how much of itself a model keeps"""
    partner: Literal["lowest", "highest", "in order"] = "lowest"
    """the model that each is combined with: the least similar one, the most similar one, or another each round"""

    def server_init(self, central: Central) -> Server:
        return Server({0: central.init().params()})

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        if client not in central.drawn:
            return Shared(mean(server.models.values()))  # Eq. (2), to predict with
        return Shared(server.models[_number(client, central) % len(server.models)])

    def aggregate(self, server: Server, replies: Sequence[Reply[Shared]], central: Central) -> Server:
        up = {_number(r.client, central): r.up.w for r in replies if r.client in central.drawn}
        old = server.models
        trained = [up.get(i, old[i % len(old)]) for i in range(len(central.drawn))]
        trained += [r.up.w for r in replies if r.client not in central.drawn]  # one that was not drawn trains the mean
        if len(trained) < 2:
            return Server(dict(enumerate(trained)) or old)
        pairs = [(v, trained[self._partner(i, trained, central.t)]) for i, v in enumerate(trained)]
        return Server({i: mean(pair, (self.alpha, 1 - self.alpha)) for i, pair in enumerate(pairs)})  # Eq. (1)

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        return central.model(mean(server.models.values()))

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def _partner(self, i: int, trained: Sequence[Params], t: int) -> int:
        others = [j for j in range(len(trained)) if j != i]
        if self.partner == "in order":
            return (i + 1 + t % len(others)) % len(trained)
        flat = [Params({k: t for k, t in v.items() if t.is_floating_point()}).flatten() for v in trained]
        pick = min if self.partner == "lowest" else max
        return pick(others, key=lambda j: float(cosine_similarity(flat[i], flat[j], dim=0)))


def _number(client: int, central: Central) -> int:
    """The middleware model that this client trains in this round."""
    return (central.drawn.index(client) + central.t) % len(central.drawn)
