"""FedCross and pFedLA in NumPy: servers that keep one model per client or per place in a round."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy64 import CLIENTS, START, Array, Weights, arrays, close, mean, train
from tiny import plan_of, run

from headwise.engine.server_bench import ServerBench
from headwise.methods.fedcross import FedCross
from headwise.methods.pfedla import PFedLA

LR, EPOCHS = 0.5, 2


def flat(w: Weights) -> Array:
    return np.concatenate([t.ravel() for t in w.values()])


def cosine(a: Weights, b: Weights) -> float:
    return float(flat(a) @ flat(b) / np.linalg.norm(flat(a)) / np.linalg.norm(flat(b)))


@pytest.mark.parametrize("partner", ["lowest", "highest", "in order"])
def test_fedcross_over_three_rounds(partner: Literal["lowest", "highest", "in order"]) -> None:
    """With all three clients in every round, client i trains model (i + t) mod 3."""
    method = FedCross(alpha=0.8, partner=partner)
    plan = plan_of(method, rounds=3, epochs=EPOCHS, lr=LR)
    end = run(plan)
    models = [START] * 3
    for t in (1, 2, 3):
        trained = [START] * 3
        for i in range(3):
            trained[(i + t) % 3] = train(models[(i + t) % 3], *CLIENTS[i], LR, EPOCHS)
        partners = list[int]()
        for i in range(3):
            others = [j for j in range(3) if j != i]
            scores = [cosine(trained[i], trained[j]) for j in others]
            by = {"lowest": others[int(np.argmin(scores))], "highest": others[int(np.argmax(scores))]}
            partners.append(by.get(partner, (i + 1 + t % 2) % 3))
        models = [mean([trained[i], trained[partners[i]]], [0.8, 0.2]) for i in range(3)]
    for i in range(3):
        close(end.server.models[i], models[i], atol=1e-5)
    evaluated = ServerBench(plan, 3, "evaluate")
    close(method.broadcast(end.server, 1, evaluated).w, mean(models), atol=1e-5)


LAYERS = {"body.0": 0, "head": 1}


def mix(net: Weights, models: list[Weights]) -> Weights:
    """Eqs. (1) and (2)."""
    h = net["v"]
    for i in range(3):
        h = np.maximum(net[f"inner.{i}.weight"] @ h + net[f"inner.{i}.bias"], 0)
    mixed = dict[str, Array]()
    for k in START:
        layer = LAYERS[k.rpartition(".")[0]]
        alpha = np.maximum(net[f"outer.{layer}.weight"] @ h + net[f"outer.{layer}.bias"], 0)
        mixed[k] = sum(a * w[k] for a, w in zip(alpha / alpha.sum(), models, strict=True))
    return mixed


def slope(net: Weights, models: list[Weights], d: Weights) -> Weights:
    """Of -<mix, d>, by central differences in double precision."""

    def value(at: Weights) -> float:
        return -float(flat(mix(at, models)) @ flat(d))

    slopes = {k: np.zeros_like(t) for k, t in net.items()}
    for k, t in net.items():
        for at in np.ndindex(t.shape):
            moved = [{**net, k: t.copy()} for _ in range(2)]
            moved[0][k][at] += 1e-5
            moved[1][k][at] -= 1e-5
            slopes[k][at] = (value(moved[0]) - value(moved[1])) / 2e-5
    return slopes


def test_pfedla_over_three_rounds() -> None:
    method = PFedLA(embed=2, hidden=3, server_lr=0.05)
    plan = plan_of(method, rounds=3, epochs=EPOCHS, lr=LR)
    end = run(plan)
    first = arrays(method._start(ServerBench(plan, 0)))
    nets = [first] * 3
    models = [train(START, *c, LR, EPOCHS) for c in CLIENTS]  # round 1: everybody gets the initial model
    for _ in (2, 3):
        before = [mix(net, models) for net in nets]
        trained = [train(w, *c, LR, EPOCHS) for w, c in zip(before, CLIENTS, strict=True)]
        for i in range(3):
            d = {k: trained[i][k] - before[i][k] for k in START}
            slopes = slope(nets[i], models, d)
            nets[i] = {k: t - 0.05 * slopes[k] for k, t in nets[i].items()}
        models = trained
    for i in range(3):
        close(end.server.models[i], models[i], atol=2e-5)
        close(end.server.nets[i], nets[i], atol=2e-5)
