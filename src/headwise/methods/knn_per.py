"""kNN-Per — Marfoq et al., *Personalized Federated Learning through Local Memorization*, ICML 2022.
https://arxiv.org/abs/2111.09360

    paper       here     meaning
    h_S         down.w   the global model, trained as in FedAvg
    phi(x)      f        its features of a sample
    S_m         store    client m's datastore: features of its training samples, with their labels
    k           k        neighbours
    lambda_m    share    weight of the neighbours in client m's prediction

    (1)  p_knn(c | x) is proportional to the sum of exp(-|phi(x) - phi(x_i)|^2 / (K scale)) over those of the k nearest
         samples of the store that have class c
    (2)  prediction: lambda p_knn + (1 - lambda) softmax(h_S(x))

As its authors' code (https://github.com/omarfoq/knn-per, `client.py`), in which lambda is the best of a grid on
validation samples; the numbers are ours. An exported model holds the features and labels of its client's samples.

Departs from it: distances are exact (there, an approximate index). A fifth of the training samples is held out to
choose lambda, and a client with too few for that takes 0.5. After local training, the store is that of the locally
trained model.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from headwise.authoring import (
    Averaging, Composed, Count, Local, Nothing, Positive, Predictor, Shared, SplitModel, Unit, Update,
)  # fmt: skip

GRID = 11  # shares 0, 0.1, ..., 1
TINY = 1e-12  # keeps the logarithm of a probability finite


@dataclass(frozen=True)
class KNNPer(Averaging[Nothing]):
    """FedAvg whose prediction a client mixes with that of the nearest of its own training samples."""

    family = "global and own model"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"

    k: Count = 10
    """neighbours; all samples if there are fewer"""
    scale: Positive = 1.0
    """how slowly a neighbour's weight falls with its distance"""
    share: Unit | Literal["best"] = "best"
    """weight of the neighbours; best: chosen on samples that are held out; 0 is FedAvg"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, self._personal(m, local), keep=m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return self._personal(local.model(down.w), local)

    def _personal(self, m: SplitModel, local: Local) -> Predictor:
        return self._mix(m, local, self._best(m, local) if self.share == "best" else self.share)

    def _best(self, m: SplitModel, local: Local) -> float:
        """The share with the smallest loss on samples that are not in the store."""
        rest, (x, y) = local.hold_out(0.2)
        if rest.n == local.n:
            return 0.5
        shares = [i / (GRID - 1) for i in range(GRID)]
        with torch.no_grad():
            losses = [float(nll_loss(self._mix(m, rest, s)(x), y)) for s in shares]
        return shares[losses.index(min(losses))]

    def _mix(self, m: SplitModel, local: Local, share: float) -> Predictor:
        """Eq. (2), as logarithms: their softmax is the mixture."""
        store, y = next(local.batches(1, through=m.body, size=local.n))
        k = min(self.k, len(y))
        width = self.scale * store.shape[1]

        def predict(x: Tensor, m: SplitModel, store: Tensor, labels: Tensor, share: Tensor) -> Tensor:
            f = m.body(x)
            d = f.square().sum(1)[:, None] + store.square().sum(1) - 2 * f @ store.T
            near, which = d.topk(k, 1, largest=False)
            weights = (-near.clamp(min=0) / width).softmax(1)
            p = (weights[..., None] * labels[which]).sum(1)  # Eq. (1)
            return (share * p + (1 - share) * m.head(f).softmax(1)).clamp(min=TINY).log()

        labels = one_hot(y, local.classes).type_as(store)
        return Composed(predict, m=m, store=store, labels=labels, share=store.new_tensor(share))
