"""FedDBE against its mathematics: a round by hand, with gradients derived on paper and not by autograd."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.methods.feddbe import FedDBE
from headwise.settings.options import Train
from headwise.testing.toy import FEATURES, network, play, toy_plan

KAPPA, MU, LR, SIZES = 0.3, 0.4, 0.1, (7, 5)
A, B, H, C = "body.0.weight", "body.0.bias", "head.weight", "head.bias"
Weights = dict[str, Tensor]


def features(w: Weights, x: Tensor) -> Tensor:
    return (x @ w[A].T + w[B]).clamp(min=0)


def by_hand(
    w: Weights, x: Tensor, y: Tensor, steps: int, centre: Tensor | None = None
) -> tuple[Weights, Tensor, Tensor]:
    """Full-batch steps on CE(H (z + p) + c) + kappa / 2K |mean - centre|^2; without a centre, on CE(H z + c) alone.

    p and the mean begin at zero, and mean = (1 - mu) old + mu zbar. With s the softmax, dL/dscores = (s - onehot) / n,
    so p gets the sum over samples of dscores H. A sample's z gets its own dscores H and, from the second term,
    kappa / K (mean - centre) dmean/dz, where dmean/dz is mu / n.
    """
    n, p = len(y), torch.zeros(w[H].shape[1], dtype=torch.float64)
    mean = p
    for _ in range(steps):
        z = features(w, x)
        mean = (1 - MU) * mean + MU * z.mean(0)
        scores = (z + p) @ w[H].T + w[C]
        d = (scores.softmax(1) - torch.eye(len(w[C]), dtype=torch.float64)[y]) / n
        pull = 0 if centre is None else KAPPA / z.shape[1] * (mean - centre) * MU / n
        dz = (d @ w[H] + pull) * (z > 0)
        slopes = {A: dz.T @ x, B: dz.sum(0), H: d.T @ (z + p), C: d.sum(0)}
        p = p if centre is None else p - LR * (d @ w[H]).sum(0)
        w = {k: t - LR * slopes[k] for k, t in w.items()}
    return w, p, mean


def compare(x: Tensor, y: Tensor, batch: int, first: int, steps: int) -> None:
    """A round of the method with the formulas: `first` steps before it, and `steps` in it."""
    blocks = np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1])
    dataset = Dataset(x.numpy().astype(np.float32), y.numpy(), ("a", "b", "c", "d"))
    data = FederatedData(dataset, [Parts(b, b[:0], b) for b in blocks])
    x = x.float().double()  # as the method sees them
    plan = toy_plan(FedDBE(kappa=KAPPA, mu=MU), data=data, rounds=1, train=Train(batch=batch, lr=LR, epochs=2))
    end = play(plan).ended[-1]

    start = {k: t.double() for k, t in network().state_dict().items()}
    shares = [n / sum(SIZES) for n in SIZES]
    means = [by_hand(start, x[b], y[b], first)[2] for b in blocks]
    centre = torch.stack([s * mean for s, mean in zip(shares, means, strict=True)]).sum(0)
    torch.testing.assert_close(end.progress.server.centre.double(), centre, rtol=1e-5, atol=1e-6)
    made = [by_hand(start, x[b], y[b], steps, centre) for b in blocks]
    for k, got in end.progress.server.w.items():
        want = sum(s * w[k] for s, (w, _, _) in zip(shares, made, strict=True))
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    for c, (_, p, _) in enumerate(made):
        assert p.norm() > 0.01
        torch.testing.assert_close(end.states[c].me.v.double(), p, rtol=1e-5, atol=1e-6)


def test_a_round_is_what_the_formulas_give() -> None:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((sum(SIZES), FEATURES)))
    compare(x, torch.arange(sum(SIZES)) % 4, batch=100, first=2, steps=2)


def test_the_first_mean_is_taken_while_the_round_s_epochs_are_trained() -> None:
    """A client's samples are all the same here, so that its two batches are the whole client, in whichever order."""
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((2, FEATURES)))
    owner = torch.repeat_interleave(torch.arange(2), torch.tensor(SIZES))
    compare(x[owner], owner, batch=4, first=4, steps=4)
