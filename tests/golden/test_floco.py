"""Floco in NumPy: a step on mixed heads, and the place of each client in the simplex."""

from __future__ import annotations

import numpy as np
import torch
from numpy64 import BODY, CLIENTS, HEAD, SIZES, START, Array, arrays, close, gradient, mean, only
from tiny import bench, plan_of, run

from headwise.authoring import Reply, project_to_simplex
from headwise.engine.server_bench import ServerBench
from headwise.methods.floco import SIZES as SCALES
from headwise.methods.floco import Floco, _energy, _place, _scores

LR = 0.5


def test_a_step_moves_each_endpoint_by_its_share() -> None:
    """The head is sum_m alpha_m h_m, so h_m has alpha_m times its slope; with rho = 0, alpha is the centre."""
    method = Floco(endpoints=3, rho=0.0)
    plan = plan_of(method, lr=LR)
    server = method.server_init(ServerBench(plan, 0))
    alpha = np.array([0.5, 0.3, 0.2])
    ends = [arrays(h) for h in server.ends.values()]
    for i, (x, y) in enumerate(CLIENTS):
        down = method.broadcast(server, i, ServerBench(plan, 1))
        down = type(down)(down.w, down.ends, torch.tensor(alpha).float(), True)
        up = method.local_update(method.client_init(bench(plan, i)), down, bench(plan, i)).up
        head = {k: sum(a * h[k] for a, h in zip(alpha, ends, strict=True)) for k in HEAD}
        slopes = gradient(only(START, BODY) | head, x, y)
        close(up.w, {k: START[k] - LR * slopes[k] for k in BODY}, atol=1e-5)
        for m in range(3):
            close(up.ends[m], {k: ends[m][k] - LR * alpha[m] * slopes[k] for k in HEAD}, atol=1e-5)


def nearest(point: Array, size: float) -> Array:
    """The projection on the simplex, by bisection of the shift that makes the positive parts add up to its size."""
    low, high = point.min() - size, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > size else (low, middle)
    return np.maximum(point - low, 0)


def test_clients_are_placed_by_pca_and_the_lowest_energy() -> None:
    method = Floco(endpoints=3, tau=1.0)
    plan = plan_of(method, rounds=1, lr=LR)
    server = method.server_init(ServerBench(plan, 0))
    down = method.broadcast(server, 0, ServerBench(plan, 1))
    assert not down.placed
    ups = [method.local_update(method.client_init(bench(plan, i)), down, bench(plan, i)).up for i in range(3)]
    flat = [np.concatenate([t.numpy().ravel() for h in up.ends.values() for t in h.values()]) for up in ups]
    points = np.stack(flat).astype(np.float64)
    centred = points - points.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    kappa = left * values
    kappa = kappa * np.sign(kappa[np.abs(kappa).argmax(0), range(3)])
    np.testing.assert_allclose(_scores(torch.tensor(centred), 3).numpy()[:, :2], kappa[:, :2], atol=1e-6)
    kappa[:, 2] = _scores(torch.tensor(centred), 3).numpy()[:, 2]  # zero but for rounding

    def energy(beta: Array) -> float:
        pairs = [(0, 1), (0, 2), (1, 2)]
        return float(np.log(np.mean([1 / max(np.linalg.norm(beta[i] - beta[j]), 1e-4) ** 2 for i, j in pairs])))

    every = [np.stack([nearest(k, z) / z for k in kappa]) for z in SCALES.numpy()[::50]]
    for z, beta in zip(SCALES[::50], every, strict=True):
        np.testing.assert_allclose((project_to_simplex(torch.tensor(kappa), z) / z).numpy(), beta, atol=1e-6)
        np.testing.assert_allclose(_energy(torch.tensor(beta)), energy(beta), atol=1e-6)
    placed = _place([Reply(i, up, SIZES[i]) for i, up in enumerate(ups)])
    chosen = np.stack([placed[i]["beta"].numpy() for i in range(3)])
    np.testing.assert_allclose(chosen.sum(1), 1, atol=1e-5)
    assert energy(chosen.astype(np.float64)) <= min(map(energy, every)) + 1e-4
    end = run(plan)
    close(end.server.w, mean([arrays(up.w) for up in ups], SIZES), atol=1e-5)
    close(end.server.centres[1], {"beta": chosen[1].astype(np.float64)}, atol=1e-5)


def test_everybody_trains_in_round_tau() -> None:
    plan = plan_of(Floco(endpoints=2, tau=0.5), rounds=4, ratio=0.34, lr=LR)
    drawn = [row["clients"] for row in run(plan).rows]
    assert [len(d) for d in drawn] == [1, 3, 1, 1]


def test_points_lie_on_the_simplex_or_in_the_ball() -> None:
    method = Floco(endpoints=4, rho=0.2)
    plan = plan_of(method)
    server = method.server_init(ServerBench(plan, 0))
    down = method.broadcast(server, 0, ServerBench(plan, 1))
    free = method._draw(down, bench(plan))
    assert abs(float(free.sum()) - 1) < 1e-6
    assert (free > 0).all()
    inside = method._draw(type(down)(down.w, down.ends, down.centre, True), bench(plan))
    assert float((inside - down.centre).abs().sum()) <= 0.2 + 1e-6
