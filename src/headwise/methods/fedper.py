"""FedPer — Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019. https://arxiv.org/abs/1912.00818

    paper   here      meaning
    W_B     down.w    base layers: the shared body
    W_Pj    me.h      personalization layers of client j: here, the head

Departs from the paper: only the last fully connected layer is personal, as in the papers that compare with FedPer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwise.authoring import Averaging, Central, Local, Params, Predictor, Record, Shared, Update


class Head(Record):
    """A client's own head."""

    h: Params


@dataclass(frozen=True)
class FedPer(Averaging[Head]):
    """A shared body with a personal head, trained together."""

    family: ClassVar[str] = "shared body"
    travels: ClassVar[str] = "body"
    stays: ClassVar[str] = "head"
    traffic_down: ClassVar[str] = "F"

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def client_init(self, local: Local) -> Head:
        return Head(local.init().state("head"))

    def local_update(self, me: Head, down: Shared, local: Local) -> Update[Shared, Head]:
        m = local.model(down.w | me.h)
        local.sgd(m)  # Algorithm 1: (W_B, W_Pj) <- SGD_j(W_B, W_Pj)
        return Update(Shared(m.params("body")), Head(m.state("head")), m)

    def personalize(self, me: Head, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.h)
