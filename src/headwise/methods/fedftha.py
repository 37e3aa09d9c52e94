"""FedFTHA — Wang et al., *FedFTHA: A Fine-Tuning and Head Aggregation Method in Federated Learning*, IEEE IoT
Journal 2023. FedFT is its client half, FedHA its server half.
https://research-repository.rmit.edu.au/articles/journal_contribution/FedFTHA_A_Fine-Tuning_and_Head_Aggregation_Method_in_Federated_Learning/27571449

    paper      here           meaning
    G          down.w         global shared representation: the body
    H_i        me.h           client i's head, kept by the server in a dictionary
    tau_sync   train.epochs   epochs on body and head together
    tau_head   head_epochs    epochs of head fine-tuning

Departs from the paper: Eq. (7) prints an update of body and head, but the sentence before it says that only the head is
updated, as we do. Eq. (8) divides by all N clients; we average over those that have uploaded (see `include_unseen`).

Read: the paper and its authors' code (https://github.com/greenonion16/FedFTHA).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Central, EpochsOrNone, Local, Method, OwnHead, Params, Predictor, Record, Reply, Shared, SplitModel, Update, mean,
    merge_by_client,
)  # fmt: skip


class Server(Record):
    """The body, the dictionary of heads, and for each head its client's number of samples and classes."""

    G: Params
    heads: dict[int, Params]
    about: dict[int, Params]


class Up(Record):
    """A client's body and, where they are sent, its head and the classes it owns."""

    G: Params
    h: Params | None
    owned: Tensor | None


@dataclass(frozen=True)
class FedFTHA(Method[Server, OwnHead, Shared, Up]):
    """A shared body with fine-tuned personal heads, and a global head that is their mean."""

    family = "shared body"
    travels = "body down, body and head up"
    stays = "head (a copy is sent)"
    uploaded_fields = ("h",)
    traffic_down = "F"
    without_body = "alone"
    traffic_up = "F + (L + (head_agg == 'owner_mean') * C / 4) * upload_heads"  # one byte per class
    cost = 1.4

    head_epochs: EpochsOrNone = 5
    """tau_head: epochs of head fine-tuning, with the body frozen, after `train.epochs` on both"""
    head_agg: Literal["mean", "owner_mean", "n_mean"] = "mean"
    """global head: plain mean; each class's row over the clients that own the class; mean weighted by samples"""
    include_unseen: bool = False
    """count clients that never uploaded, with the initial head, as Eq. (8) is printed"""
    upload_heads: bool = True
    """send heads to the server; off is FedFT alone: heads never leave their clients and there is no global model"""

    def server_init(self, central: Central) -> Server:
        return Server(central.init().params("body"), {}, {})

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        return Shared(server.G)

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Up, OwnHead]:
        m = local.model(down.w | me.h)
        local.sgd(m)  # Eq. (6), tau_sync epochs
        local.sgd(m, only=m.head, epochs=self.head_epochs)  # Eq. (7)
        owned = local.class_counts > 0 if self.upload_heads and self.head_agg == "owner_mean" else None
        h = m.params("head") if self.upload_heads else None
        return Update(Up(m.params("body"), h, owned), OwnHead(m.state("head")), m)

    def aggregate(self, server: Server, replies: Sequence[Reply[Up]], central: Central) -> Server:
        if not replies:
            return server
        heads = {r.client: r.up.h for r in replies if r.up.h is not None}
        about = {r.client: _count_owned(r) for r in replies if r.up.h is not None}
        G = mean(r.up.G for r in replies)  # Eq. (9): every client counts the same
        return Server(G, merge_by_client(server.heads, heads), merge_by_client(server.about, about))

    def join(self, me: OwnHead, down: Shared, whole: Params | None, local: Local) -> Predictor:
        m = local.model(down.w | me.h if whole is None else whole)  # it gets the global head, Eq. (8) ...
        local.sgd(m, only=m.head)  # ... and fine-tunes it, Eq. (7)
        return m

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        if not self.upload_heads:
            return None
        heads = list(server.heads.values())
        n = [a["n"].item() for a in server.about.values()]
        unseen = len(central.clients) - len(heads) if self.include_unseen or not heads else 0
        usual = sum(n) / max(len(n), 1) or 1.0
        weights = [*n, *[usual] * unseen] if self.head_agg == "n_mean" else None
        h = mean([*heads, *[central.init().params("head")] * unseen], weights)  # Eq. (8)
        if self.head_agg == "owner_mean" and heads:
            h = _average_by_owners(h, heads, torch.stack([a["owned"] for a in server.about.values()]))
        return central.model(server.G | h)


def _count_owned(reply: Reply[Up]) -> Params:
    owned = {} if reply.up.owned is None else {"owned": reply.up.owned}
    return Params({"n": torch.tensor(reply.n), **owned})


def _average_by_owners(h: Params, heads: Sequence[Params], owned: Tensor) -> Params:
    """Row c of the last layer is the mean over the owners of class c; a class that nobody owns keeps its row of h."""
    layer = [*h][-1].rpartition(".")[0]

    def rows(name: str, fallback: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (fallback.dim() - 1)
        count = owned.sum(0).view(shape)
        total = (torch.stack([head[name] for head in heads]) * owned.view(len(heads), *shape)).sum(0)
        return torch.where(count > 0, total / count.clamp(min=1), fallback)

    return Params({name: rows(name, t) if name.startswith(f"{layer}.") else t for name, t in h.items()})
