"""FedRoD — Chen and Chao, *On Bridging Generic and Personalized Federated Learning for Image Classification*, ICLR
2022. https://arxiv.org/abs/2107.00778

    paper      here               meaning
    theta      down.w, body       shared feature extractor
    psi        down.w, head       generic head, trained with the balanced softmax
    phi_m      me.p               client m's personalized head, on top of the generic one
    N_m,c      class_counts       training samples of class c at client m

Departs from the paper: the personalized head is the linear one, not a hypernetwork's. Classes that a client does not
hold are left out of its softmax, which is the balanced softmax with N_m,c = 0. The counts are exact; the public code
takes them from a loader that drops samples, and so can miss classes that the client holds.

Read: its abstract, PFLlib's and FL-bench's files; its authors' repository (https://github.com/hongyouc/Fed-RoD) has no
code. Numbers of the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.authoring import Averaging, Composed, Local, Params, Predictor, Record, Shared, SplitModel, Update


class Own(Record):
    """A client's personalized head."""

    p: Params


@dataclass(frozen=True)
class FedRoD(Averaging[Own]):
    """A generic model trained as if all classes were equally frequent, plus a personal head."""

    family = "two heads"
    tasks = ("classification",)
    travels = "whole model"
    stays = "second head"
    cost = 1.1

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state("head"))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m, own = local.model(down.w), local.model(me.p)
        prior = (local.class_counts / local.class_counts.max()).log()  # log N_m,c, up to a constant; -inf where absent

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Section 4: two losses on disjoint parameters, so one step trains forward_both heads."""
            f = m.body(x)
            z = m.head(f)
            generic = cross_entropy(z + prior, y)  # balanced softmax
            return generic + local.loss_of(z.detach() + own.head(f.detach()), y)

        local.sgd(m, own.head, loss=loss)
        return Update(Shared(m.params()), Own(own.state("head")), _sum(m, own.head), keep=m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return _sum(local.model(down.w), local.model(me.p).head)


def _sum(m: SplitModel, own: nn.Module) -> Predictor:
    """The personalized prediction: forward_both heads on the same features."""

    def forward_both(x: Tensor, m: SplitModel, own: nn.Module) -> Tensor:
        f = m.body(x)
        return m.head(f) + own(f)

    return Composed(forward_both, m=m, own=own)
