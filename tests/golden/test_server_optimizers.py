"""The server's optimizers, as Reddi et al. (ICLR 2021, Algorithm 2) write them, on a model of two numbers.

With Delta the clients' mean change and tau = 1e-3, v_0 = tau^2:
    FedAvgM   m <- b m + Delta                     w <- w + lr m
    FedAdam   m <- b m + (1-b) Delta               v <- .99 v + .01 Delta^2
    FedAdagrad  m as FedAdam                       v <- v + Delta^2
    FedYogi   m as FedAdam                         v <- v - .01 Delta^2 sign(v - Delta^2)
              w <- w + lr m / (sqrt(v) + tau)
"""

from __future__ import annotations

from math import copysign, sqrt

import pytest
import torch
from tiny import plan_of

from headwise.contract.averaging import Averaged, Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedavg import FedAvg
from headwise.params import Params

TAU, LR, B = 1e-3, 0.3, 0.9
START, SENT = (1.0, -2.0), (((2.0, -2.5), 1), ((0.0, 0.5), 3))
"""the server's numbers, and two clients' numbers with their samples"""


def change(w: tuple[float, ...]) -> list[float]:
    return [sum(n * sent[i] for sent, n in SENT) / 4 - w[i] for i in range(2)]


def by_hand(opt: str, rounds: int) -> list[float]:
    w, m, v = list(START), [0.0, 0.0], [TAU**2, TAU**2]
    for _ in range(rounds):
        for i, d in enumerate(change(tuple(w))):
            if opt == "none":
                w[i] += LR * d
                continue
            m[i] = B * m[i] + (d if opt == "momentum" else (1 - B) * d)
            if opt == "momentum":
                w[i] += LR * m[i]
                continue
            v[i] = {
                "adagrad": v[i] + d * d,
                "adam": 0.99 * v[i] + 0.01 * d * d,
                "yogi": v[i] - 0.01 * d * d * copysign(1, v[i] - d * d),
            }[opt]
            w[i] += LR * m[i] / (sqrt(v[i]) + TAU)
    return w


@pytest.mark.parametrize("opt", ["none", "momentum", "adagrad", "adam", "yogi"])
def test_three_rounds(opt: str) -> None:
    method = FedAvg(server_opt=opt, server_lr=LR, server_momentum=B)  # type: ignore[arg-type]
    plan = plan_of(method)
    central = ServerBench(plan, 1)
    first = method.server_init(central)
    numbers = Params(a=torch.tensor(START, dtype=torch.float64))
    server = Averaged(
        numbers,
        None if first.m is None else numbers.zeros(),
        None if first.v is None else numbers.map(lambda t: torch.full_like(t, TAU**2)),
    )
    replies = [
        Reply(c, Shared(Params(a=torch.tensor(sent, dtype=torch.float64))), n) for c, (sent, n) in enumerate(SENT)
    ]
    for _ in range(3):
        server = method.aggregate(server, replies, central)
    torch.testing.assert_close(server.w["a"], torch.tensor(by_hand(opt, 3), dtype=torch.float64))


def test_moments_start_as_the_paper_says() -> None:
    central = ServerBench(plan_of(), 1)
    adam = FedAvg(server_opt="adam").server_init(central)
    assert adam.m is not None
    assert adam.v is not None
    assert all(bool((t == 0).all()) for t in adam.m.values())
    assert all(bool((t == torch.tensor(TAU**2)).all()) for t in adam.v.values())
    plain = FedAvg().server_init(central)
    assert plain.m is None
    assert plain.v is None


def test_integers_are_those_of_the_mean() -> None:
    method = FedAvg(server_opt="momentum", server_lr=0.5)
    w = Params(a=torch.ones(1), count=torch.tensor(3))
    server = Averaged(w, Params(a=torch.zeros(1), count=torch.tensor(0.0)), None)
    sent = Params(a=torch.zeros(1), count=torch.tensor(7))
    after = method.aggregate(server, [Reply(0, Shared(sent), 1)], ServerBench(plan_of(method), 1))
    assert after.w["count"].item() == 7
    assert after.w["count"].dtype == torch.int64
    assert after.w["a"].item() == pytest.approx(0.5)
