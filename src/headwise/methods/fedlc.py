"""FedLC — Zhang et al., *Federated Learning with Label Distribution Skew via Logits Calibration*, ICML 2022.
https://arxiv.org/abs/2209.00189

    paper   here           meaning
    f_c     z              score of class c
    n_c     class_counts   a client's samples of class c
    tau     tau            strength of the calibration

    (1)  calibrated scores: z_c - tau n_c^(-1/4)
    (2)  loss: log sum_c exp(calibrated score of c) - calibrated score of y

The abstract and the peers' files (FL-bench's `fedlc.py`, PFLlib's `clientlc.py`) were at hand; the numbers are ours.

Departs from the paper, whose sum in (2) leaves out the true class (`fedlc@paper`): that loss has no lower bound, and
FL-bench reports that training collapses with it; both peers take all classes. A class without samples counts as
ABSENT samples, as in FL-bench, which takes it out of the sum. PFLlib calibrates with the counts of all clients.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from headwise.authoring import Averaging, Local, NonNegative, Nothing, Shared, Update

ABSENT = 1e-8


@dataclass(frozen=True)
class FedLC(Averaging[Nothing]):
    """FedAvg in which clients lower the scores of classes that they have few samples of while they train."""

    family = "one global model"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    presets = {"paper": {"against": "others"}}

    tau: NonNegative = 1.0
    """strength of the calibration; 0 is FedAvg, if all classes compete"""
    against: Literal["all", "others"] = "all"
    """what the true class competes with in the loss: all classes, or (paper) only the others"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        shift = self.tau * local.class_counts.clamp(min=ABSENT) ** -0.25

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = m(x) - shift  # Eq. (1)
            if self.against == "all":
                return cross_entropy(z, y)  # Eq. (2)
            true = one_hot(y, local.classes) > 0
            return (z.masked_fill(true, float("-inf")).logsumexp(1) - z[true]).mean()

        local.sgd(m, loss=loss)
        return Update(Shared(m.params()), me, m)
