"""FedNTD — Lee et al., *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning*, NeurIPS
2022. https://arxiv.org/abs/2106.03097

    paper       here     meaning
    z^g         z_g      scores of the model that was sent, constant during training
    z^l         z        scores of the model in training
    q~_tau      -        softmax at temperature tau over all classes but the true one
    beta, tau   the same weight and temperature of the distillation

    (1)  loss: CE(z^l, y) + beta tau^2 KL(q~_tau(z^g) || q~_tau(z^l))

From the paper's abstract and PFLlib's file, which cites the authors' code (https://github.com/Lee-Gihun/FedNTD); that
code itself was not read. The number is ours.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import one_hot

from headwise.authoring import Averaging, Local, NonNegative, Nothing, Positive, Shared, Update, kl


@dataclass(frozen=True)
class FedNTD(Averaging[Nothing]):
    """FedAvg in which clients keep what the global model says about the classes that a sample does not belong to."""

    family = "one global model"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    cost = 1.3

    beta: NonNegative = 1.0
    """weight of the distillation; 0 is FedAvg"""
    tau: Positive = 1.0
    """temperature of the distillation"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        z_g = local.freeze(local.model(down.w))

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1)
            z = m(x)
            others = one_hot(y, local.classes) == 0
            rest_g, rest = (scores[others].view(len(y), -1) / self.tau for scores in (z_g(x), z))
            return local.loss_of(z, y) + self.beta * self.tau**2 * kl(rest_g, rest)

        local.sgd(m, loss=loss)
        return Update(Shared(m.params()), me, m)
