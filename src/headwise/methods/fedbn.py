"""FedBN — Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021.
https://arxiv.org/abs/2102.07623

    paper       here        meaning
    w_{0,k}^l   me.norms    the parameters of client k's BatchNorm layers, here with their running statistics
    w^l         down.w      the parameters of all other layers

BatchNorm layers are recognized by type, not by "bn" in their name, and stay whatever the run's `buffers` setting is.
Without BatchNorm this is FedAvg.

Departs from the paper: the mean is weighted by n_k, as in FedAvg; Algorithm 1 takes the plain mean (`fedbn@paper`).

Read: its abstract and its authors' code (https://github.com/med-air/FedBN, `fed_digits.py`), which takes the plain
mean, and recognizes BatchNorm by its name; Algorithm 1 is from memory.
"""

from dataclasses import dataclass

from headwise.authoring import (
    Averaged, Averaging, Central, Local, Params, Predictor, Record, Shared, SplitModel, Update, has_batchnorm,
    split_norms,
)  # fmt: skip


class Norms(Record):
    """A client's BatchNorm layers: parameters and running statistics."""

    norms: Params


@dataclass(frozen=True)
class FedBN(Averaging[Norms]):
    """FedAvg in which BatchNorm layers stay local."""

    family = "partial sharing"
    travels = "whole model except BatchNorm layers"
    stays = "BatchNorm layers"
    presets = {"paper": {"weights": "clients"}}

    def shared(self, central: Central) -> Params:
        return split_norms(central.init())[1]  # their mean: Algorithm 1, if layer l is not BN

    def global_model(self, server: Averaged, central: Central) -> SplitModel | None:
        return None if has_batchnorm(central.init()) else central.model(server.w)

    def client_init(self, local: Local) -> Norms:
        return Norms(split_norms(local.init())[0])

    def local_update(self, me: Norms, down: Shared, local: Local) -> Update[Shared, Norms]:
        m = local.model(down.w | me.norms)
        local.sgd(m)  # Algorithm 1: w_{t+1,k} <- SGD(w_{t,k})
        norms, others = split_norms(m)
        return Update(Shared(others), Norms(norms), m)

    def personalize(self, me: Norms, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.norms)
