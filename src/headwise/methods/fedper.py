"""FedPer — Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019. https://arxiv.org/abs/1912.00818

    paper   here      meaning
    W_B     down.w    base layers: the shared body
    W_Pj    me.h      personalization layers of client j: here, the head

Departs from the paper: only the last fully connected layer is personal, as in the papers that compare with FedPer.

Read: its abstract, PFLlib's and FL-bench's files; its authors' code was not found. Numbers of the paper's sections,
equations and algorithms are from memory.
"""

from dataclasses import dataclass

from headwise.authoring import Averaging, Central, Local, OwnHead, Params, Shared, Update


@dataclass(frozen=True)
class FedPer(Averaging[OwnHead]):
    """A shared body with a personal head, trained together."""

    family = "shared body"
    travels = "body"
    stays = "head"
    traffic_down = "F"
    without_body = "alone"

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        m = local.model(down.w | me.h)
        local.sgd(m)  # Algorithm 1: (W_B, W_Pj) <- SGD_j(W_B, W_Pj)
        return Update(Shared(m.params("body")), OwnHead(m.state("head")), m)
