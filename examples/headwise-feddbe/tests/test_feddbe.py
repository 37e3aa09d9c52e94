"""FedDBE against its mathematics: a round by hand, with gradients derived on paper and not by autograd."""

from __future__ import annotations

import numpy as np
import torch
from headwise_feddbe.feddbe import FedDBE
from torch import Tensor

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.settings.options import Train
from headwise.testing import check_method
from headwise.testing.toy import FEATURES, network, play, toy_plan

KAPPA, MU, LR, SIZES = 0.3, 0.4, 0.1, (7, 4)
A, B, H, C = "body.0.weight", "body.0.bias", "head.weight", "head.bias"


def samples() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.standard_normal((sum(SIZES), FEATURES))), torch.arange(sum(SIZES)) % 4


def features(w: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ w[A].T + w[B]).clamp(min=0)


def by_hand(w: dict[str, Tensor], x: Tensor, y: Tensor, centre: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Two full-batch steps on CE(H (z + p) + c) + kappa / K |mean - centre|^2, both with p from zero.

    With s the softmax, dL/dscores = (s - onehot) / n, so p gets the sum over samples of dscores H. A sample's z gets
    its own dscores H and, from the second term, 2 kappa / K (mean - centre) dmean/dz, where dmean/dz is 1/n in the
    first step, in which the mean is the batch's, and mu/n in the second, in which it is (1 - mu) old + mu batch.
    """
    p, old = torch.zeros(w[H].shape[1], dtype=torch.float64), None
    for _ in range(2):
        z, n = features(w, x), len(y)
        mean = z.mean(0) if old is None else (1 - MU) * old + MU * z.mean(0)
        scores = (z + p) @ w[H].T + w[C]
        d = (scores.softmax(1) - torch.eye(len(w[C]), dtype=torch.float64)[y]) / n
        pull = 2 * KAPPA / z.shape[1] * (mean - centre) * (1.0 if old is None else MU) / n
        dz = (d @ w[H] + pull) * (z > 0)
        slopes = {A: dz.T @ x, B: dz.sum(0), H: d.T @ (z + p), C: d.sum(0)}
        p = p - LR * (d @ w[H]).sum(0)
        w, old = {k: t - LR * slopes[k] for k, t in w.items()}, mean
    return w, p


def test_a_round_is_what_the_formulas_give() -> None:
    x, y = samples()
    blocks = np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1])
    dataset = Dataset(x.numpy().astype(np.float32), y.numpy(), ("a", "b", "c", "d"))
    data = FederatedData(dataset, [Parts(b, b[:0], b) for b in blocks])
    x = x.float().double()  # as the method sees them
    method = FedDBE(kappa=KAPPA, mu=MU)
    end = play(toy_plan(method, data=data, rounds=1, train=Train(batch=100, lr=LR, epochs=2))).ended[-1]

    start = {k: t.double() for k, t in network().state_dict().items()}
    shares = [n / sum(SIZES) for n in SIZES]
    centre = sum(s * features(start, x[b]).mean(0) for s, b in zip(shares, blocks, strict=True))
    made = [by_hand(start, x[b], y[b], centre) for b in blocks]
    torch.testing.assert_close(end.progress.server.centre.double(), centre, rtol=1e-5, atol=1e-6)
    for k, got in end.progress.server.w.items():
        want = sum(s * w[k] for s, (w, _) in zip(shares, made, strict=True))
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    for c, (_, p) in enumerate(made):
        assert p.norm() > 0.01
        torch.testing.assert_close(end.states[c].me.bias.double(), p, rtol=1e-5, atol=1e-6)


def test_contract() -> None:
    check_method(FedDBE)
