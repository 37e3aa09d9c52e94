"""FedSAM — Caldarola, Caputo and Ciccone, *Improving Generalization in Federated Learning by Seeking Flat Minima*, ECCV
2022. https://arxiv.org/abs/2203.11834

    paper     here    meaning
    w         w       a client's model during its training
    rho       rho     radius of the neighbourhood whose worst point counts

    (1)  e = rho g / |g|, with g the gradient of the batch's loss at w
    (2)  w <- w - eta times the gradient of the batch's loss at w + e

As its authors' code (https://github.com/debcaldarola/fedsam, `sam_client.py` and its minimizer); the numbers are ours.
Departs from it: without ASAM's scaling by weights, and without the averaging of weights over rounds (SWA).
"""

from dataclasses import dataclass

from torch import Tensor

from headwise.authoring import Averaging, Local, NonNegative, Nothing, Params, Shared, Update, gradient

TINY = 1e-16  # as in the authors' code: keeps (1) finite where there is no slope


@dataclass(frozen=True)
class FedSAM(Averaging[Nothing]):
    """FedAvg in which clients step by the gradient at the worst point nearby, to end in flat minima."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"
    cost = 2

    rho: NonNegative = 0.05
    """radius of the neighbourhood; 0 is FedAvg"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        start = m.weights().map(lambda t: t.detach().clone())

        def worst(w: Params, x: Tensor, y: Tensor) -> Tensor:  # its slope is that of Eq. (2)
            g = gradient(lambda p: local.loss(m.given(p), x, y), w)
            e = g * (self.rho / (g.sq_norm().sqrt() + TINY))  # Eq. (1)
            return local.loss(m.given(w + e), x, y)

        trained = local.descend(start, worst, train=(m,), weights=start.keys())
        m = local.model(Params({**m.state(), **trained}))
        return Update(Shared(m.params()), me, m)
