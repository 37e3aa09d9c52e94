"""FedRS — Li and Zhan, *FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data*, KDD
2021. https://doi.org/10.1145/3447548.3467254

    paper     here    meaning
    w_c h     z       score of class c
    alpha     alpha   factor of the scores of classes that a client does not hold

    (1)  loss: cross-entropy of the scores, those of missing classes times alpha

As its authors' code (https://github.com/lxcnju/FedRepo, `algorithms/fedrs.py`); the number is ours. There, a class's
factor grows from alpha to 1 with its share of the client's samples, relative to the most frequent one (`fedrs@code`).

Departs from it: factors apply to scores with their biases; the code's classifier has none.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headwise.authoring import Averaging, Local, Nothing, Shared, Unit, Update


@dataclass(frozen=True)
class FedRS(Averaging[Nothing]):
    """FedAvg in which clients scale down the scores of classes that they do not hold while they train."""

    family = "one global model"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    presets = {"code": {"factors": "counts"}}

    alpha: Unit = 0.5
    """factor of the scores of missing classes; 1 is FedAvg"""
    factors: Literal["held", "counts"] = "held"
    """1 for every class that the client holds, or (code) growing with its samples"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        n = local.class_counts
        share = n / n.max() if self.factors == "counts" else (n > 0).type_as(n)
        factor = self.alpha + (1 - self.alpha) * share

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1)
            return local.loss_of(m(x) * factor, y)

        local.sgd(m, loss=loss)
        return Update(Shared(m.params()), me, m)
