"""FedMRL and FLUTE in NumPy, over two rounds.

FedMRL: with r = [f_g, f] the features of both models and s = P r + b, the scores are V s + c of the own head and
V_g s + c_g of the shared one (both models have two features, so both heads take all of s). Then
ds = dz V + dz_g V_g, dP = ds^T r, db = sum ds, and dr = ds P, of which the first half is the shared body's df.

FLUTE: N = |R| with R = G / |G| - T and G = W W^T. Then dN/dG = (R / |G| - <R, G> G / |G|^3) / |R|, which is symmetric,
so dN/dW = 2 dN/dG W.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy64 import (
    BODY,
    CLIENTS,
    HEAD,
    SIZES,
    START,
    A,
    Array,
    B,
    C,
    Labels,
    V,
    Weights,
    arrays,
    backward,
    close,
    entropy_slope,
    forward,
    mean,
    only,
    step,
)
from tiny import bench, plan_of, run

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedmrl import FedMRL
from headwise.methods.flute import FLUTE, Parts, Server

LR, EPOCHS = 0.2, 2
Nested = tuple[Weights, Weights, Weights]
"""own model, shared model, projector"""


def nested_step(own: Weights, small: Weights, proj: Weights, x: Array, y: Labels) -> Nested:
    mine, theirs = forward(own, x), forward(small, x)
    r = np.concatenate((theirs.f, mine.f), 1)
    s = r @ proj["weight"].T + proj["bias"]
    dz, dz_g = (entropy_slope(s @ w[V].T + w[C], y) for w in (own, small))
    ds = dz @ own[V] + dz_g @ small[V]
    dr = ds @ proj["weight"]
    made = list[Weights]()
    for w, at, slope, df in ((own, mine, dz, dr[:, 2:]), (small, theirs, dz_g, dr[:, :2])):
        da = df * (at.a > 0)
        made.append(step(w, {A: da.T @ x, B: da.sum(0), V: slope.T @ s, C: slope.sum(0)}, LR))
    slopes = {"weight": ds.T @ r, "bias": ds.sum(0)}
    return made[0], made[1], {k: t - LR * slopes[k] for k, t in proj.items()}


def test_fedmrl() -> None:
    method = FedMRL()
    plan = plan_of(method, rounds=2, epochs=EPOCHS, lr=LR)
    first = [method.client_init(bench(plan, c, 0)) for c in range(3)]
    own, proj = [arrays(me.w) for me in first], [arrays(me.proj) for me in first]
    shared = START
    for _ in range(2):
        ends = list[Weights]()
        for c, client in enumerate(CLIENTS):
            small = shared
            for _ in range(EPOCHS):
                own[c], small, proj[c] = nested_step(own[c], small, proj[c], *client)
            ends.append(small)
        shared = mean(ends, SIZES)
    end = run(plan)
    close(end.server.w, shared)
    for c in range(3):
        close(end.states[c].me.w, own[c])
        close(end.states[c].me.proj, proj[c])
    x, _ = CLIENTS[2]
    r = np.concatenate((forward(shared, x).f, forward(own[2], x).f), 1)
    scores = (r @ proj[2]["weight"].T + proj[2]["bias"]) @ own[2][V].T + own[2][C]
    model = method.personalize(end.states[2].me, Shared(end.server.w), bench(plan, 2, 2))
    np.testing.assert_allclose(model(torch.from_numpy(x).float()).detach().numpy(), scores, atol=1e-5)


def test_fedmrl_starts_with_a_head_of_its_own() -> None:
    """Otherwise both models would start alike; the projector goes from four features to two."""
    method = FedMRL()
    me = method.client_init(bench(plan_of(method), 0, 0))
    close(me.w.select("body."), only(START, BODY))
    assert np.abs(me.w[V].numpy() - START[V]).max() > 0.1
    assert me.proj["weight"].shape == (2, 4)


LAM1, LAM2, LAM3, SERVER_LR, HEAD_EPOCHS = 0.4, 0.03, 0.02, 0.3, 2


def angles_slope(W: Array, u: Array) -> Array:
    G = W @ W.T
    size = np.sqrt((G**2).sum())
    R = G / size - (np.eye(3) - 1 / 3) * np.outer(u, u) / np.sqrt(2)
    dG = (R / size - (R * G).sum() * G / size**3) / np.sqrt((R**2).sum())
    return 2 * dG @ W


def flute_train(w: Weights, x: Array, y: Labels) -> Weights:
    u = (np.bincount(y, minlength=3) > 0).astype(float)
    for phase, steps in (("head", HEAD_EPOCHS), ("whole", EPOCHS)):
        for _ in range(steps):
            made = forward(w, x)
            df = 2 * LAM3 * made.f if phase == "whole" else 0.0
            slopes = backward(w, x, made, entropy_slope(made.z, y), df)
            slopes[V] = slopes[V] + LAM1 * angles_slope(w[V], u) + 2 * LAM2 * w[V]
            w = step(w, slopes, LR, HEAD if phase == "head" else BODY + HEAD)
    return w


def test_flute() -> None:
    body, heads = only(START, BODY), [only(START, HEAD)] * 3
    for _ in range(2):
        ends = [flute_train(body | h, *client) for h, client in zip(heads, CLIENTS, strict=True)]
        body = mean([only(w, BODY) for w in ends], SIZES)
        for c, (w, (_, y)) in enumerate(zip(ends, CLIENTS, strict=True)):
            u = (np.bincount(y, minlength=3) > 0).astype(float)
            heads[c] = {V: w[V] - SERVER_LR / 3 * angles_slope(w[V], u), C: w[C]}
    method = FLUTE(head_epochs=HEAD_EPOCHS, lam1=LAM1, lam2=LAM2, lam3=LAM3, server_lr=SERVER_LR)
    end = run(plan_of(method, rounds=2, epochs=EPOCHS, lr=LR))
    close(end.server.w, body)
    for c, h in enumerate(heads):
        close(end.server.heads[c], h)


def test_flute_server_lowers_the_angles_of_the_clients_own_classes() -> None:
    """Many steps, with all classes: W W^T becomes I - 1/3 up to its size, the simplex of equal angles."""
    method = FLUTE(server_lr=0.05)
    central = ServerBench(plan_of(method, [(torch.zeros(3, 2), torch.arange(3))]), 1)
    w = central.init().params()
    server = Server(w.select("body."), {})
    head = w.select("head.")
    for _ in range(400):
        server = method.aggregate(server, [Reply(0, Parts(server.w, head), 3)], central)
        head = server.heads[0]
    G = (head[V] @ head[V].T).double().numpy()
    np.testing.assert_allclose(G / np.sqrt((G**2).sum()), (np.eye(3) - 1 / 3) / np.sqrt(2), atol=0.05)
