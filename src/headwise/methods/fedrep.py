"""FedRep — Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*, ICML 2021.
https://arxiv.org/abs/2102.07078

    paper   here           meaning
    phi     down.w         the shared body
    h_i     me.h           client i's head; it never leaves the client
    tau     head_epochs    head updates per round

Departs from the paper: the server weights bodies by n_i, Algorithm 1 takes the plain mean (`fedrep@paper`); head and
body updates are counted in epochs, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headwise.authoring import Averaging, Central, EpochsOrNone, Local, Params, Predictor, Record, Shared, Update


class Head(Record):
    """A client's own head."""

    h: Params


@dataclass(frozen=True)
class FedRep(Averaging[Head]):
    """A shared body with a personal head: first the head is trained, then the body."""

    family: ClassVar[str] = "shared body"
    travels: ClassVar[str] = "body"
    stays: ClassVar[str] = "head"
    traffic_down: ClassVar[str] = "F"
    cost: ClassVar[float] = 1.4
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"weights": "clients"}}

    head_epochs: EpochsOrNone = 10
    """epochs on the head, with the body frozen, before the body's `train.epochs`"""

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def client_init(self, local: Local) -> Head:
        return Head(local.init().state("head"))

    def local_update(self, me: Head, down: Shared, local: Local) -> Update[Shared, Head]:
        m = local.model(down.w | me.h)
        local.sgd(m, only=m.head, epochs=self.head_epochs)  # Algorithm 1: h_i <- GRD(f_i(h_i, phi), h_i), tau times
        local.sgd(m, only=m.body)  # Algorithm 1: phi_i <- GRD(f_i(h_i, phi), phi)
        return Update(Shared(m.params("body")), Head(m.state("head")), m)

    def personalize(self, me: Head, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.h)
