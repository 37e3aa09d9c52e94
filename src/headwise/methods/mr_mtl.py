"""MR-MTL — Liu et al., *On Privacy and Personalization in Cross-Silo Federated Learning*, NeurIPS 2022.
https://arxiv.org/abs/2206.07902

    paper    here     meaning
    w_k      me.w     client k's personal model, from which it continues
    w-       down.w   the mean of the clients' personal models
    lambda   lam      how strongly w_k is pulled towards w-

    (1)  loss of client k: F_k(w_k) + lambda/2 ||w_k - w-||^2

Mean-regularized multi-task learning, as the abstract and its authors' code
(https://github.com/kenziyuliu/private-cross-silo-fl, `trainers/mrmtl.py`); the number is ours.

Departs from the paper, in which all clients take part: w- is the mean over the round's clients, weighted by samples
unless asked (`mr-mtl@paper`). The paper trains with DP-SGD; here such training knows the task's loss only, so MR-MTL is
refused with `privacy.level = "example"`. A new client starts from w-.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from headwise.authoring import (
    Averaging, Local, NonNegative, Params, Predictor, Record, Shared, Update, join_by_training,
)  # fmt: skip


class Own(Record):
    """A client's own model."""

    w: Params


@dataclass(frozen=True)
class MRMTL(Averaging[Own]):
    """Every client trains its own model, pulled towards the mean of all."""

    family: ClassVar[str] = "personal aggregation"
    travels: ClassVar[str] = "whole model"
    stays: ClassVar[str] = "whole model (a copy is sent)"
    uploaded_fields: ClassVar[tuple[str, ...]] = ("w",)
    cost: ClassVar[float] = 1.1
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"weights": "clients"}}

    lam: NonNegative = 0.1
    """pull towards the mean; 0 is local training"""

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state())

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m = local.model(me.w)
        centre = down.w.restrict(m.live())

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1)
            return local.loss(m, x, y) + self.lam / 2 * (m.live() - centre).sq_norm()

        local.sgd(m, loss=loss)
        return Update(Shared(m.params()), Own(m.state()), m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return local.model(me.w)

    def join(self, me: Own, down: Shared, whole: Params | None, local: Local) -> Predictor:
        start = Own(local.model(down.w).state())
        return join_by_training(self, start, down, local)
