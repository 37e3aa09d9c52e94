"""FedBABU — Oh, Kim and Yun, *FedBABU: Toward Enhanced Representation for Federated Image Classification*, ICLR 2022.
https://arxiv.org/abs/2106.06042

    paper        here               meaning
    theta_ext    down.w             the shared extractor: the body
    theta_cls    init().head        the head: random, the same for all clients, never trained in the federation
    tau          train.epochs       local epochs per round
    tau_f        finetune_epochs    epochs of fine-tuning before use

Departs from the paper: bodies are weighted by n_i. Before use, each client fine-tunes a copy of the body with the
common head and then discards it, so nothing personal is kept. A client's model right after training is not fine-tuned.

Read: its abstract and its authors' code (https://github.com/jhoon-oh/FedBABU, `main_fed.py`), which takes the plain
mean. Numbers of the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass
from typing import Literal

from headwise.authoring import (
    Averaging, Central, EpochsOrNone, Local, Nothing, Params, Predictor, Shared, SplitModel, Update,
)  # fmt: skip


@dataclass(frozen=True)
class FedBABU(Averaging[Nothing]):
    """A shared body, trained with one fixed random head; every client fine-tunes before use."""

    family = "shared body"
    travels = "body"
    stays = "nothing"
    traffic_down = "F"
    without_body = "alone"

    finetune_epochs: EpochsOrNone = 5
    """epochs of fine-tuning before use; 0 uses the body with the common random head"""
    finetune: Literal["all", "head"] = "all"
    """what to fine-tune: the whole model, or only the head"""

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = _put_under_common_head(down, local)
        local.sgd(m, only=m.body)  # Algorithm 1: only the extractor is updated
        return Update(Shared(m.params("body")), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        m = _put_under_common_head(down, local)
        local.sgd(m, only=m.head if self.finetune == "head" else None, epochs=self.finetune_epochs)
        return m

    def join(self, me: Nothing, down: Shared, whole: Params | None, local: Local) -> Predictor:
        m = _put_under_common_head(down, local)
        local.sgd(m, only=m.head if self.finetune == "head" else None)  # `finetune_epochs` is for everyone else
        return m


def _put_under_common_head(down: Shared, local: Local) -> SplitModel:
    return local.model(down.w | local.init().state("head"))
