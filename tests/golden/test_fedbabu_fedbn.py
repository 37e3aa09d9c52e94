"""FedBABU (arXiv 2106.06042, Algorithm 1) and FedBN (arXiv 2102.07623, Algorithm 1) by hand.

FedBABU's gradients are `byhand.gradient`, applied to the body alone. FedBN's network normalizes a = A x + b by the
batch, a^ = (a - mean) / sqrt(var + 1e-5), f = max(s a^ + o, 0), and keeps 0.9 old + 0.1 new statistics (the variance
with n - 1); its gradients are those of autograd on these plain tensors.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, CLIENTS, HEAD, SIZES, START, A, B, C, V, Weights, close, descend, only, weighted
from tiny import bench, model_of, plan_of, run
from torch import Tensor, nn

from headwise.contract.averaging import Shared
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedbabu import FedBABU
from headwise.methods.fedbn import FedBN
from headwise.models.split import Buffers, SplitModel
from headwise.params import Params
from headwise.records import Nothing

LR, EPOCHS = 0.5, 2
SCALE, SHIFT, MEAN, VAR = (f"body.1.{k}" for k in ("weight", "bias", "running_mean", "running_var"))


def test_fedbabu() -> None:
    """Two rounds: bodies descend under the initial head, their mean is weighted by n; the head never moves."""
    w = START
    for _ in range(2):
        w = {**w, **weighted([descend(w, x, y, LR, EPOCHS, BODY) for x, y in CLIENTS], BODY)}
    end = run(plan_of(FedBABU(), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), only(w, BODY))
    update = FedBABU().local_update(Nothing(), Shared(Params({k: w[k].float() for k in BODY})), bench(plan_of()))
    close(update.model.head.state_dict(), {"weight": START[V], "bias": START[C]})
    assert end.rows[0]["bytes_up"] == end.rows[0]["bytes_down"] == 3 * 4 * 6


@pytest.mark.parametrize(("what", "names"), [("all", BODY + HEAD), ("head", HEAD)])
@pytest.mark.parametrize("epochs", [0, 5])
def test_fedbabu_is_fine_tuned_before_use(what: str, names: tuple[str, ...], epochs: int) -> None:
    """The body that was sent, under the initial head, and some epochs on all of it or on the head."""
    rng = torch.Generator().manual_seed(1)
    body = {k: torch.randn(START[k].shape, generator=rng).double() for k in BODY}
    method = FedBABU(finetune=what, finetune_epochs=epochs)  # type: ignore[arg-type]
    down = Shared(Params({k: t.float() for k, t in body.items()}))
    model = method.personalize(Nothing(), down, bench(plan_of(method), 2))
    close(model.state_dict(), descend({**START, **body}, *CLIENTS[2], LR, epochs, names))


def normed() -> SplitModel:
    model = model_of()
    layers = nn.Sequential(model.body[0], nn.BatchNorm1d(2), nn.ReLU())  # type: ignore[index]
    with torch.no_grad():
        layers[1].weight.copy_(torch.tensor([1.5, 0.5]))
        layers[1].bias.copy_(torch.tensor([0.25, 0.75]))
    return SplitModel(layers, model.head).eval()


def trained(w: Weights, x: Tensor, y: Tensor) -> Weights:
    """One full-batch step in plain tensors, and the statistics."""
    names = (A, B, SCALE, SHIFT, V, C)
    q = {k: w[k].clone().requires_grad_() for k in names}
    a = x.double() @ q[A].T + q[B]
    mean, var = a.mean(0), ((a - a.mean(0)) ** 2).mean(0)
    f = (q[SCALE] * (a - mean) / (var + 1e-5).sqrt() + q[SHIFT]).clamp(min=0)
    z = f @ q[V].T + q[C]
    loss = (z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean()
    slopes = dict(zip(names, torch.autograd.grad(loss, [q[k] for k in names]), strict=True))
    n = len(y)
    stats = {MEAN: 0.9 * w[MEAN] + 0.1 * mean, VAR: 0.9 * w[VAR] + 0.1 * var * n / (n - 1)}
    return {k: t.detach() for k, t in {**{k: w[k] - LR * slopes[k] for k in names}, **stats}.items()}


@pytest.mark.parametrize("buffers", ["params", "all", "local"])
def test_fedbn(buffers: Buffers) -> None:
    """Two rounds of two clients with 4 and 3 samples: A, b, V, c are averaged; scale, shift and statistics stay."""
    rng = torch.Generator().manual_seed(3)
    clients = [(torch.randn(n, 2, generator=rng), torch.arange(n) % 3) for n in (4, 3)]
    model = normed()
    model.batchnorm = buffers
    first = {k: t.double() for k, t in model.state().items() if t.is_floating_point()}
    own = [first, first]
    for _ in range(2):
        own = [trained(w, x, y) for w, (x, y) in zip(own, clients, strict=True)]
        shared = weighted(own, BODY + HEAD, [4, 3])
        own = [{**w, **shared} for w in own]
    plan = plan_of(FedBN(), clients, model=model, rounds=2)
    end = run(plan)
    close(dict(end.server.w), only(own[0], BODY + HEAD))
    for c in (0, 1):
        norms = {k: t for k, t in end.states[c].me.norms.items() if t.is_floating_point()}
        close(norms, only(own[c], (SCALE, SHIFT, MEAN, VAR)))
        model = FedBN().personalize(end.states[c].me, end.server, bench(plan, c))
        close({k: t for k, t in model.state_dict().items() if t.is_floating_point()}, own[c])
    assert (own[0][SCALE] - own[1][SCALE]).abs().max() > 1e-3
    assert FedBN().global_model(end.server, ServerBench(plan, 2)) is None
    assert end.rows[0]["bytes_up"] == end.rows[0]["bytes_down"] == 2 * 4 * 15 and SIZES == [1, 2, 3]
