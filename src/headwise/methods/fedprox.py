"""FedProx — Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020. https://arxiv.org/abs/1812.06127

    paper   here     meaning
    w^t     w_t      the model sent to the client, constant during its training
    mu      mu       strength of the pull back to it
    gamma   -        inexactness of the local solver: here, the number of epochs

Departs from the paper: every client runs the same number of epochs (Algorithm 2 lets each choose its inexactness),
and clients are drawn uniformly and weighted by n_k, as in FedAvg.

Read: its abstract and its authors' code (https://github.com/litian96/FedProx, `trainers/fedprox.py`,
`optimizer/pgd.py`), which draws uniformly and weights by samples, too; Algorithm 2 is from memory.
"""

from dataclasses import dataclass

from headwise.authoring import Averaging, Local, NonNegative, Nothing, Shared, Update


@dataclass(frozen=True)
class FedProx(Averaging[Nothing]):
    """FedAvg with a pull back to the model that clients were sent."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"
    cost = 1.1

    mu: NonNegative = 0.01
    """weight of the proximal term; 0 is FedAvg"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m, pull=(self.mu, down.w.restrict(m.live())))  # Eq. (2): F_k(w) + mu/2 ||w - w^t||^2
        return Update(Shared(m.params()), me, m)
