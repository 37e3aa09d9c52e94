"""FedAvg — McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.
https://arxiv.org/abs/1602.05629

    paper   here           meaning
    w_t     down.w         the global model
    E       train.epochs   local epochs per round
    n_k     Reply.n        samples of client k

Departs from the paper: the n_k are normalised over the round's clients, as Algorithm 1 must be read when only some
clients take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwise.authoring import Averaging, Local, Nothing, Predictor, Shared, Update


@dataclass(frozen=True)
class FedAvg(Averaging[Nothing]):
    """One global model, the mean of the clients' locally trained copies."""

    family: ClassVar[str] = "one global model"
    travels: ClassVar[str] = "whole model"
    stays: ClassVar[str] = "nothing"

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)  # Algorithm 1, ClientUpdate: w <- w - eta grad l(w; b)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return local.model(down.w)
