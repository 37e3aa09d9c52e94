"""FedAvg — McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.
https://arxiv.org/abs/1602.05629

    paper   here           meaning
    w_t     down.w         the global model
    E       train.epochs   local epochs per round
    n_k     Reply.n        samples of client k

Departs from the paper: the n_k are normalized over the round's clients, as Algorithm 1 must be read when only some
clients take part.

Read: its abstract, PFLlib's and FL-bench's files; Algorithm 1 is from memory.
"""

from dataclasses import dataclass

from headwise.authoring import Averaging, Local, Nothing, Shared, Update


@dataclass(frozen=True)
class FedAvg(Averaging[Nothing]):
    """One global model, the mean of the clients' locally trained copies."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)  # Algorithm 1, ClientUpdate: w <- w - eta grad l(w; b)
        return Update(Shared(m.params()), me, m)
