"""LG-FedAvg — Liang et al., *Think Locally, Act Globally: Federated Learning with Local and Global Representations*,
2020. https://arxiv.org/abs/2001.01523

    paper     here      meaning
    theta_l   me.phi    local model: client m's own representation, here the body
    theta_g   down.w    global model on top of it: here the head

Departs from the paper: training starts from scratch, not from a FedAvg model; there are no auxiliary losses.

Read: its abstract, its authors' code (https://github.com/pliang279/LG-FedAvg, `main_lg.py`), which starts from a FedAvg
model and takes the plain mean, and PFLlib's file. Numbers of the paper's sections, equations and algorithms are from
memory.
"""

from dataclasses import dataclass

from headwise.authoring import Averaging, Central, Local, OwnBody, Params, Shared, Update


@dataclass(frozen=True)
class LGFedAvg(Averaging[OwnBody]):
    """A personal body with a shared head; clients may have different architectures for the body."""

    family = "shared head"
    travels = "head"
    stays = "body"
    traffic_down = "L"
    heterogeneous = "same head"

    def shared(self, central: Central) -> Params:
        return central.init().params("head")

    def local_update(self, me: OwnBody, down: Shared, local: Local) -> Update[Shared, OwnBody]:
        m = local.model(me.phi | down.w)
        local.sgd(m)  # Algorithm 1: local and global parameters are updated together
        return Update(Shared(m.params("head")), OwnBody(m.state("body")), m)
