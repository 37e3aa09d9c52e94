"""FedMRL — Yi et al., *Federated Model Heterogeneous Matryoshka Representation Learning*, NeurIPS 2024.
https://arxiv.org/abs/2406.00488

    paper        here        meaning
    F_k          me.w        client k's own model, of any architecture; it never leaves the client
    G            down.w      the small model that all share, of the server's architecture
    P_k          me.proj     client k's projector: a linear layer from both models' features to nested ones
    R~^lf, R~^hf f           nested features: the first d_1 are for G's head, the first d_2 for F_k's head

    (1)  loss: l(F_k's head on its part of P_k([G's features, F_k's features])) + the same with G's head

As its authors' code (https://github.com/LipingYi/FedMRL, `FedMRL_homo.py`); the number is ours. A client predicts with
its own head on the nested features.

Departs from it: G keeps its own head; the code overwrites it with the first columns of F_k's head before each batch.
Gradients are not clipped at 50. There G is narrower than F_k (d_1 < d_2); here the projector has as many outputs as the
wider one needs. In HtFLlib's file the projector is not saved, so it never learns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.authoring import (
    Averaging, Bench, Central, Composed, Local, Params, Predictor, Record, Shared, SplitModel, Update,
)  # fmt: skip


class Own(Record):
    """A client's own model and its projector."""

    w: Params
    proj: Params


@dataclass(frozen=True)
class FedMRL(Averaging[Own]):
    """A private and a shared model predict from the same projected features; only the shared one travels."""

    family = "mutual distillation"
    tasks = ("classification", "multilabel", "regression")
    travels = "second model"
    stays = "whole model, projector"
    cost = 2
    heterogeneous = "any"

    def shared(self, central: Central) -> Params:
        return central.init(common=True).params()

    def client_init(self, local: Local) -> Own:
        own = local.model(local.random_head("fedmrl"))
        proj = _projector(own, local.init(common=True), local)
        return Own(own.state(), Params({k: t.detach() for k, t in proj.state_dict().items()}))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        own, small, proj = _parts(me, down, local)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1)
            f = proj(torch.cat((small.body(x), own.body(x)), 1))
            return local.loss_of(own.head(f[:, : own.width]), y) + local.loss_of(small.head(f[:, : small.width]), y)

        local.sgd(own, small, proj, loss=loss)
        kept = Own(own.state(), Params({k: t.detach().clone() for k, t in proj.state_dict().items()}))
        return Update(Shared(small.params()), kept, _personal(own, small, proj), keep=small)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return _personal(*_parts(me, down, local))


def _projector(own: SplitModel, small: SplitModel, bench: Bench) -> nn.Linear:
    sizes = small.width + own.width, max(small.width, own.width)
    return bench.draw(lambda: nn.Linear(*sizes), "fedmrl", *sizes)


def _parts(me: Own, down: Shared, local: Local) -> tuple[SplitModel, SplitModel, nn.Linear]:
    own, small = local.model(me.w), local.model(down.w, common=True)
    proj = _projector(own, small, local)
    proj.load_state_dict(dict(me.proj))
    return own, small, proj


def _personal(own: SplitModel, small: SplitModel, proj: nn.Linear) -> Predictor:
    width = own.width

    def predict(x: Tensor, own: SplitModel, small: nn.Module, proj: nn.Linear) -> Tensor:
        return own.head(proj(torch.cat((small(x), own.body(x)), 1))[:, :width])

    return Composed(predict, own=own, small=small.body, proj=proj)
