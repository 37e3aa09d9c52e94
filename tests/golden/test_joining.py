"""What a client that was not there gets, by hand: FedFTHA, FedAH, FedGMH, FedBABU, and the default.

`test_joining_from_papers` has FedGH and FedAFK.

Batches hold all samples, so an epoch is one step of `byhand.descend`. The run has decayed its learning rate by then;
a newcomer begins at the undecayed one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import BODY, CLIENTS, HEAD, START, Weights, close, descend, drawn, gradient
from tiny import floats, plan_of

from headwise.contract.averaging import Averaged
from headwise.engine.joining import join
from headwise.engine.plan import Plan
from headwise.methods.ditto import Ditto
from headwise.methods.fedah import FedAH
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedavg_ft import FedAvgFT
from headwise.methods.fedbabu import FedBABU
from headwise.methods.fedftha import FedFTHA, Server
from headwise.methods.fedgmh import FedGMH, Heads
from headwise.params import Params

LR, NEW = 0.5, 2
X, Y = CLIENTS[NEW]
"""the newcomer: one sample of class 1, two of class 2"""
EPOCHS = pytest.mark.parametrize("epochs", [0, 1, 5])


def plan(method: Any) -> Plan:
    return plan_of(method, lr=LR, lr_decay=0.1, rounds=4)


def gets(method: Any, server: Any, epochs: int, wanted: Weights) -> None:
    model = join(plan(method), server, NEW, 4, epochs).model
    close(model.state_dict(), wanted)  # type: ignore[attr-defined]


@EPOCHS
def test_fedftha_gives_the_global_head_and_fine_tunes_only_it(epochs: int) -> None:
    """Eq. (8): the mean of the heads that the others sent, whatever their sizes; then Eq. (7)."""
    G, heads = drawn(1, BODY), [drawn(2, HEAD), drawn(3, HEAD)]
    about = {c: Params(n=torch.tensor(n)) for c, n in ((0, 1), (1, 2))}
    server = Server(floats(G), {c: floats(h) for c, h in enumerate(heads)}, about)
    start = G | {k: (heads[0][k] + heads[1][k]) / 2 for k in HEAD}
    gets(FedFTHA(), server, epochs, descend(start, X, Y, LR, epochs, only=HEAD))


def test_fedft_alone_has_no_global_head_to_give() -> None:
    G = drawn(1, BODY)
    gets(FedFTHA(upload_heads=False), Server(floats(G), {}, {}), 0, G | {k: START[k] for k in HEAD})


@EPOCHS
def test_fedah_learns_the_weights_between_the_first_and_the_global_head(epochs: int) -> None:
    """From W = 1, one step of Eq. (4); with epochs, one on the head and as many on the body follow."""
    w = drawn(4)
    slope = gradient(w, X, Y)  # at W = 1 the aggregated head is the global one
    W = {k: (1 - slope[k] * (w[k] - START[k])).clamp(0, 1) for k in HEAD}
    assert any(((t > 0) & (t < 1)).any() for t in W.values())
    start = {**w, **{k: START[k] + (w[k] - START[k]) * W[k] for k in HEAD}}
    if epochs:
        start = descend(start, X, Y, LR, 1, only=HEAD)
    gets(FedAH(), Averaged(floats(w), None, None), epochs, descend(start, X, Y, LR, epochs, only=BODY))


@EPOCHS
def test_fedgmh_combines_the_heads_of_its_labels(epochs: int) -> None:
    """Eq. (9) before the first participation: 1/3 h_1 + 2/3 h_2, on the initial body, which nobody shares."""
    heads = [drawn(5 + s, HEAD) for s in range(3)]
    start = START | {k: heads[1][k] / 3 + heads[2][k] * 2 / 3 for k in HEAD}
    gets(FedGMH(), Heads({s: floats(h) for s, h in enumerate(heads)}), epochs, descend(start, X, Y, LR, epochs))


@EPOCHS
@pytest.mark.parametrize("finetune", ["all", "head"])
def test_fedbabu_fine_tunes_under_the_common_head(epochs: int, finetune: Any) -> None:
    body, only = drawn(10, BODY), HEAD if finetune == "head" else BODY + HEAD
    method = FedBABU(finetune=finetune, finetune_epochs=3)
    gets(method, Averaged(floats(body), None, None), epochs, descend(START | body, X, Y, LR, epochs, only=only))


@EPOCHS
@pytest.mark.parametrize(
    "method", [FedAvg(), FedAvgFT(finetune_epochs=3), Ditto(lam=0.0)], ids=lambda m: type(m).__name__
)
def test_others_fine_tune_what_they_download(method: Any, epochs: int) -> None:
    w = drawn(11)
    gets(method, Averaged(floats(w), None, None), epochs, descend(w, X, Y, LR, epochs))
