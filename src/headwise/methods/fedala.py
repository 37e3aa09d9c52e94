"""FedALA — Zhang et al., *FedALA: Adaptive Local Aggregation for Personalized Federated Learning*, AAAI 2023.
https://arxiv.org/abs/2212.01197

    paper         here        meaning
    Theta^{t-1}   down.w      the global model
    Theta_i       me.theta    client i's own model after its last participation: its p highest layers
    W_i           me.W        element-wise aggregation weights of these layers, in [0, 1]
    eta           weight_lr   learning rate of the weights
    s             share       share of the samples that the weights are learned on
    p             p           number of layers aggregated; those below come from the global model

Departs from the paper: in the first round in which a client's layers differ from the global ones, the weights are
learned until the standard deviation of the last 10 epochs' mean losses is below `threshold`, for at most `cap` epochs.
Our p counts layers; the authors' code counts tensors (the weight and bias of one layer are 2).

Read: its abstract and its authors' code (https://github.com/TsingZ0/FedALA). Numbers of the paper's sections, equations
and algorithms are from memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import (
    Averaging, Count, Local, NonNegative, Params, Positive, Predictor, Record, Share, Shared, SplitModel, Update,
)  # fmt: skip

RECENT = 10  # epochs whose losses must agree before the weights count as converged


class Own(Record):
    """A client's own highest layers, their aggregation weights, and whether these have been learned yet."""

    theta: Params
    W: Params
    begun: bool


@dataclass(frozen=True)
class FedALA(Averaging[Own]):
    """FedAvg in which clients start a round from a learned element-wise mixture of their own and the global model."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "weights of the highest layers"
    uploaded_fields = ("theta",)
    cost = 1.4

    p: Count = 1
    """number of layers, from the output down, to aggregate element by element; 1 is the head"""
    share: Share = 0.8
    """share of the samples, a random window, used to learn the weights"""
    weight_lr: NonNegative = 1.0
    """learning rate of the weights; 0 keeps them at 1, which is FedAvg"""
    threshold: Positive = 0.1
    """standard deviation of recent losses below which the weights count as converged, the first time they learn"""
    cap: Count = 100
    """most epochs on the weights that first time; in later rounds it is one epoch"""

    def client_init(self, local: Local) -> Own:
        m = local.init()
        theta = m.params().restrict(self._highest(m))
        return Own(theta, theta.map(torch.ones_like), begun=False)

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m, W, begun = self._aggregate(me, down, local)
        local.sgd(m)
        return Update(Shared(m.params()), Own(m.params().restrict(W), W, begun), m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return self._aggregate(me, down, local)[0]

    def _highest(self, m: SplitModel) -> list[str]:
        """The names of the parameters of the p highest layers."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in m.live()))
        return [name for name in m.live() if name.rpartition(".")[0] in layers[-self.p :]]

    def _aggregate(self, me: Own, down: Shared, local: Local) -> tuple[SplitModel, Params, bool]:
        """The initialized local model, its aggregation weights, and whether they have been learned."""
        m = local.model(down.w)
        theta = down.w.restrict(me.W)
        if not self.weight_lr or all(torch.equal(t, theta[k]) for k, t in me.theta.items()):
            return m, me.W, me.begun  # nothing to learn, as in round 1
        window = local.window(self.share)
        now = me.W
        losses = list[Tensor]()
        on_features = all(k.startswith("head.") for k in me.W)
        through = m.body if on_features else None

        def loss(W: Params, x: Tensor, y: Tensor) -> Tensor:
            w = _mixture(me.theta, theta, W)
            value = local.loss(m.head_given(w) if on_features else m.given(w), x, y)
            losses.append(value.detach())
            return value

        history = list[float]()
        while not _is_settled(history, 1 if me.begun else self.cap, self.threshold):
            now = window.descend(
                now, loss, epochs=1, lr=self.weight_lr, project=lambda W: W.clamp(0, 1), through=through
            )  # Algorithm 1: W <- W - eta dL/dTheta^ * (Theta - Theta_i), clipped to [0, 1]
            history.append(float(torch.stack(losses).mean()) if losses else 0.0)
            losses.clear()
        return local.model(Params({**down.w, **_mixture(me.theta, theta, now)})), now, True


def _mixture(own: Params, global_model: Params, W: Params) -> Params:
    """Theta^_i = Theta_i + (Theta - Theta_i) * W; exactly Theta where W is 1."""
    return Params({k: torch.lerp(t, global_model[k], W[k]) for k, t in own.items()})


def _is_settled(history: list[float], cap: int, threshold: float) -> bool:
    recent = torch.tensor(history[-RECENT:])
    return len(history) >= cap or (len(history) > RECENT and bool(recent.std() < threshold))
