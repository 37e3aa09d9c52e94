"""CD2-pFed — Shen, Zhou and Yu, *CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in
Federated Learning*, CVPR 2022. https://arxiv.org/abs/2204.03880

    paper    here       meaning
    theta_s  shared     the shared channels of all layers: averaged
    theta_p  private    the private channels of all layers: they never leave the client

    (1)  l(theta) + lambda / 2 (KL(y_p || y_s) + KL(y_s || y_p)), the first of each pair taken as a constant

y_s and y_p are the predictions with the private, or the shared, parameters set to zero, in evaluation mode. Channels
are a layer's outputs; the last ones are private. The head's outputs are classes, not channels, so its weight is split
by input feature and its bias is shared. Departs from the paper, or fills in what we could not find in it (the equation
number is ours): the private share grows linearly; a channel that turns private starts from its last shared value.

Read: its abstract; no public code was found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from headwise.authoring import (
    Averaging, Central, Local, NonNegative, Params, Predictor, Record, Shared, SplitModel, Unit, Update,
)  # fmt: skip


class Own(Record):
    """A client's model: its shared channels as last trained, and its private ones."""

    shared: Params
    private: Params


@dataclass(frozen=True)
class CD2PFed(Averaging[Own]):
    """Some channels of every layer are averaged, the rest private, and each half learns to predict like the other."""

    family = "partial sharing"
    tasks = ("classification", "segmentation")
    travels = "shared channels"
    stays = "private channels"
    uploaded_fields = ("shared",)
    traffic_down = "?"  # about (1 - p) P, more while the private share still grows
    fixed_layout = False
    cost = 1.7

    p: Unit = 0.5
    """final share of each layer's channels that are private; 0 is FedAvg"""
    growth: Unit = 0.5
    """share of all rounds over which the private share grows; 0: it is p from the first round"""
    lam: NonNegative = 1.0
    """weight of cyclic distillation; 0 is channel decoupling alone"""

    def shared(self, central: Central) -> Params:
        return _divide(central.init(), 0.0).shared  # all channels, before the first one turns private

    def client_init(self, local: Local) -> Own:
        return _divide(local.init(), 0.0)

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m = _join(me, down, local)
        ratio = self.p * min(1.0, local.t / (self.growth * local.T)) if self.growth else self.p
        ones = _mark_shared(m, ratio)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return local.loss(m, x, y) + self.lam * _cyclic(m, ones, x)  # Eq. (1)

        local.sgd(m, loss=None if self.lam == 0 or all(bool(t.all()) for t in ones.values()) else loss)
        mine = _divide(m, ratio)
        return Update(Shared(mine.shared), mine, m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return _join(me, down, local)


def _cyclic(m: SplitModel, ones: Params, x: Tensor) -> Tensor:
    """The second term of Eq. (1), without its weight."""
    mode = m.training
    m.eval()
    s, p = (log_softmax(m.given(m.weights() * part)(x), 1) for part in (ones, ones.map(lambda t: 1 - t)))
    m.train(mode)
    from_s, from_p = s.detach(), p.detach()
    return (from_p.exp() * (from_p - s) + from_s.exp() * (from_s - p)).sum(1).mean() / 2


def _channels(m: SplitModel) -> dict[str, int]:
    """The channel dimension of each tensor; tensors without one are shared whole."""
    words = [k for k in m.state() if isinstance(m.get_submodule(k.rpartition(".")[0]), nn.Embedding)]
    return {k: d for k, t in m.state().items() if t.ndim > (d := int(k.startswith("head.") or k in words))}


def _halves(t: Tensor, d: int, ratio: float) -> tuple[Tensor, Tensor]:
    shared = t.shape[d] - int(round(ratio * t.shape[d], 6))  # floor, but 6.9999999 counts as 7
    return t.narrow(d, 0, shared), t.narrow(d, shared, t.shape[d] - shared)


def _mark_shared(m: SplitModel, ratio: float) -> Params:
    """One where a parameter is shared, zero where it is private."""
    ones = m.weights().map(torch.ones_like)
    across = _channels(m)
    for k in ones.keys() & across.keys():
        _halves(ones[k], across[k], ratio)[1].zero_()
    return ones


def _divide(m: SplitModel, ratio: float) -> Own:
    travels = m.params()
    across = _channels(m)
    halves = {k: _halves(t, across[k], ratio) for k, t in travels.items() if k in across}
    shared = {k: halves[k][0] if k in halves else t for k, t in travels.items()}
    private = {k: halves[k][1] if k in halves else t for k, t in m.state().items() if k in halves or k not in travels}
    return Own(Params(shared), Params(private))


def _join(me: Own, down: Shared, local: Local) -> SplitModel:
    """The client's own model, with the received channels replaced."""
    across = _channels(local.init())
    whole = dict(down.w)
    for k in down.w.keys() & across.keys():
        own = torch.cat([me.shared[k], me.private[k]], across[k])
        whole[k] = torch.cat([whole[k], own.tensor_split([whole[k].shape[across[k]]], across[k])[1]], across[k])
    return local.model(Params({**me.private, **whole}))
