"""FedBN — Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021.
https://arxiv.org/abs/2102.07623

    paper       here        meaning
    w_{0,k}^l   me.norms    the parameters of client k's BatchNorm layers, here with their running statistics
    w^l         down.w      the parameters of all other layers

BatchNorm layers are recognised by type, not by "bn" in their name, and stay whatever the run's `buffers` setting is.
Without BatchNorm this is FedAvg.

Departs from the paper: the mean is weighted by n_k, as in FedAvg; Algorithm 1 takes the plain mean (`fedbn@paper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from headwise.authoring import (
    Averaged, Averaging, Central, Local, Params, Predictor, Record, Shared, SplitModel, Update,
)  # fmt: skip

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Norms(Record):
    """A client's BatchNorm layers: parameters and running statistics."""

    norms: Params


@dataclass(frozen=True)
class FedBN(Averaging[Norms]):
    """FedAvg in which BatchNorm layers stay local."""

    family: ClassVar[str] = "partial sharing"
    travels: ClassVar[str] = "whole model except BatchNorm layers"
    stays: ClassVar[str] = "BatchNorm layers"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"weights": "clients"}}

    def shared(self, central: Central) -> Params:
        return _others(central.init())  # their mean: Algorithm 1, if layer l is not BN

    def global_model(self, server: Averaged, central: Central) -> SplitModel | None:
        return None if _norms(central.init()) else central.model(server.w)

    def client_init(self, local: Local) -> Norms:
        return Norms(_norms(local.init()))

    def local_update(self, me: Norms, down: Shared, local: Local) -> Update[Shared, Norms]:
        m = local.model(down.w | me.norms)
        local.sgd(m)  # Algorithm 1: w_{t+1,k} <- SGD(w_{t,k})
        return Update(Shared(_others(m)), Norms(_norms(m)), m)

    def personalize(self, me: Norms, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.norms)


def _norms(m: SplitModel) -> Params:
    """Parameters and statistics of the BatchNorm layers."""
    return Params({k: t for k, t in m.state().items() if isinstance(m.get_submodule(k.rpartition(".")[0]), NORMS)})


def _others(m: SplitModel) -> Params:
    """What may travel from all other layers."""
    norms = _norms(m)
    return Params({k: t for k, t in m.params().items() if k not in norms})
