"""FedRep — Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*, ICML 2021.
https://arxiv.org/abs/2102.07078

    paper   here           meaning
    phi     down.w         the shared body
    h_i     me.h           client i's head; it never leaves the client
    tau     head_epochs    head updates per round

Departs from the paper: the server weights bodies by n_i, Algorithm 1 takes the plain mean (`fedrep@paper`); head and
body updates are counted in epochs, as in the authors' code.

Read: its abstract, its authors' code (https://github.com/lgcollins/FedRep), PFLlib's and FL-bench's files. Numbers of
the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass

from headwise.authoring import Averaging, Central, EpochsOrNone, Local, OwnHead, Params, Shared, Update


@dataclass(frozen=True)
class FedRep(Averaging[OwnHead]):
    """A shared body with a personal head: first the head is trained, then the body."""

    family = "shared body"
    travels = "body"
    stays = "head"
    traffic_down = "F"
    without_body = "alone"
    cost = 1.4
    presets = {"paper": {"weights": "clients"}}

    head_epochs: EpochsOrNone = 10
    """epochs on the head, with the body frozen, before the body's `train.epochs`"""

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        m = local.model(down.w | me.h)
        local.sgd(m, only=m.head, epochs=self.head_epochs)  # Algorithm 1: h_i <- GRD(f_i(h_i, phi), h_i), tau times
        local.sgd(m, only=m.body)  # Algorithm 1: phi_i <- GRD(f_i(h_i, phi), phi)
        return Update(Shared(m.params("body")), OwnHead(m.state("head")), m)
