"""FedCAC — Wu et al., *Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously
Aggressive Collaboration*, ICCV 2023. https://arxiv.org/abs/2309.11103

    paper     here     meaning
    theta_i   up.w     client i's model; the server keeps everybody's last one
    M_i       mask     which parameters are critical to it: sensitive to its own data

    (1)  sensitivity of a parameter: |(theta - theta before training) theta|
    (2)  O_ij = 1 - ||M_i - M_j||_1 / (2 |M_i|)
    (3)  i's collaborators: O_ij >= mean O + t / beta (max O - mean O), over all pairs
    (4)  theta_i <- M_i * mean over its collaborators + (1 - M_i) * mean over all

(The numbers are ours.) Departs from the paper, in which all clients take part: the mean over all is over the round's
clients; collaborators can be all that have trained, with their last models and masks.

Read: its abstract and its authors' code (https://github.com/kxzxvbk/Fling, `fedcac_client.py`, `fedcac_group.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Count, Local, Method, Params, Predictor, Record, Reply, SplitModel, Unit, Update, mark_largest, mean,
    merge_by_client,
)  # fmt: skip


class Server(Record):
    """The mean over all, the last model and mask of each client that has trained, and who collaborates with whom."""

    w: Params
    models: dict[int, Params]
    masks: dict[int, Params]
    like: Tensor


class Own(Record):
    """Which parameters are critical; None until the client first takes part."""

    mask: Params | None


class Down(Record):
    """The mean over all clients, and over this client's collaborators."""

    w: Params
    custom: Params


class Up(Record):
    """A client's model, and which of its parameters are critical."""

    w: Params
    mask: Params


@dataclass(frozen=True)
class FedCAC(Method[Server, Own, Down, Up]):
    """Each client's critical parameters are averaged over clients with similar ones, the rest over all clients."""

    family = "partial sharing"
    travels = "two models down; one and a mask up"
    stays = "mask (a copy is sent)"
    uploaded_fields = ("mask",)
    traffic_down = "2 * P"
    traffic_up = "P + P / 4"  # a boolean takes one byte

    tau: Unit = 0.5
    """share of each tensor's parameters that are critical; 0 is FedAvg with equal weights"""
    beta: Count = 100
    """rounds over which the required overlap rises to the largest; after them critical parameters are not shared"""

    def server_init(self, central: Central) -> Server:
        return Server(central.init().params(), {}, {}, torch.ones(0, 0, dtype=torch.bool))

    def broadcast(self, server: Server, client: int, central: Central) -> Down:
        if client not in server.models:
            return Down(server.w, server.w)
        like = server.like[list(server.models).index(client)]
        return Down(server.w, mean(w for w, so in zip(server.models.values(), like, strict=True) if so))

    def aggregate(self, server: Server, replies: Sequence[Reply[Up]], central: Central) -> Server:
        if not replies:
            return server
        models = merge_by_client(server.models, {r.client: r.up.w for r in replies})
        masks = merge_by_client(server.masks, {r.client: r.up.mask for r in replies})
        return Server(
            mean(r.up.w for r in replies), models, masks, _find_collaborators(masks.values(), central.t / self.beta)
        )

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def client_init(self, local: Local) -> Own:
        return Own(None)

    def local_update(self, me: Own, down: Down, local: Local) -> Update[Up, Own]:
        m = _merge(me, down, local)
        before = m.params()
        local.sgd(m)
        after = m.params()
        moved = {k: (after[k] - before[k]) * after[k] for k in m.live()}  # Eq. (1)
        mask = Params({k: mark_largest(t.abs(), self.tau) for k, t in moved.items()})
        return Update(Up(after, mask), Own(mask), m)

    def personalize(self, me: Own, down: Down, local: Local) -> Predictor:
        return _merge(me, down, local)


def _merge(me: Own, down: Down, local: Local) -> SplitModel:
    """Eq. (4)."""
    critical = {} if me.mask is None else {k: torch.where(M, down.custom[k], down.w[k]) for k, M in me.mask.items()}
    return local.model(Params({**down.w, **critical}))


def _find_collaborators(masks: Iterable[Params], progress: float) -> Tensor:
    """Eq. (3); every client is its own collaborator."""
    flat = torch.stack([M.flatten() for M in masks]).float()
    size = flat.sum(1)
    own = torch.eye(len(flat), dtype=torch.bool)
    overlap = 1 - (size[:, None] + size - 2 * flat @ flat.T).double() / (2 * size[:, None]).clamp(min=1)  # Eq. (2)
    pairs = overlap[~own] if len(flat) > 1 else torch.ones(1)
    return own | (overlap >= pairs.mean() + progress * (pairs.max() - pairs.mean()) - 1e-9)
