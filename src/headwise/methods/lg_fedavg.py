"""LG-FedAvg — Liang et al., *Think Locally, Act Globally: Federated Learning with Local and Global Representations*,
2020. https://arxiv.org/abs/2001.01523

    paper     here      meaning
    theta_l   me.phi    local model: client m's own representation, here the body
    theta_g   down.w    global model on top of it: here the head

Departs from the paper: training starts from scratch, not from a FedAvg model; there are no auxiliary losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from headwise.authoring import Averaging, Central, Local, Params, Predictor, Record, Shared, Update


class Body(Record):
    """A client's own body."""

    phi: Params


@dataclass(frozen=True)
class LGFedAvg(Averaging[Body]):
    """A personal body with a shared head; clients may have different architectures for the body."""

    family: ClassVar[str] = "shared head"
    travels: ClassVar[str] = "head"
    stays: ClassVar[str] = "body"
    traffic_down: ClassVar[str] = "L"
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "same head"

    def shared(self, central: Central) -> Params:
        return central.init().params("head")

    def client_init(self, local: Local) -> Body:
        return Body(local.init().state("body"))

    def local_update(self, me: Body, down: Shared, local: Local) -> Update[Shared, Body]:
        m = local.model(me.phi | down.w)
        local.sgd(m)  # Algorithm 1: local and global parameters are updated together
        return Update(Shared(m.params("head")), Body(m.state("body")), m)

    def personalize(self, me: Body, down: Shared, local: Local) -> Predictor:
        return local.model(me.phi | down.w)
