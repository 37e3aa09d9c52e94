"""FedAvg with fine-tuning — Wang et al., *Federated Evaluation of On-device Personalization*, 2019.
https://arxiv.org/abs/1910.10252

Training is FedAvg's. Before use, each client copies the global model and trains the copy on its own data; the copy is
then discarded, so nothing personal is kept. FedALA's tables call it FedAvg-C.

Read: its abstract; FL-bench's files have the same as `finetune_epoch`. Numbers of the paper's sections, equations and
algorithms are from memory.
"""

from dataclasses import dataclass
from typing import Literal

from headwise.authoring import Averaging, EpochsOrNone, Local, Nothing, Params, Predictor, Shared, Update


@dataclass(frozen=True)
class FedAvgFT(Averaging[Nothing]):
    """FedAvg, with the global model fine-tuned by each client before use."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"

    finetune_epochs: EpochsOrNone = 1
    """epochs of fine-tuning before use; 0 is FedAvg"""
    finetune: Literal["all", "head"] = "all"
    """what to fine-tune: the whole model, or only the head"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)  # Section 2: federated training is FedAvg's
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        m = local.model(down.w)
        local.sgd(m, only=m.head if self.finetune == "head" else None, epochs=self.finetune_epochs)
        return m

    def join(self, me: Nothing, down: Shared, whole: Params | None, local: Local) -> Predictor:
        m = local.model(down.w)
        local.sgd(m, only=m.head if self.finetune == "head" else None)  # `finetune_epochs` is for everyone else
        return m
