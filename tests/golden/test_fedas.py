"""FedAS in NumPy, over two rounds: alignment, Fisher traces, and the mean that they weight.

Alignment lowers sum_c 1/n_c sum_{i: y_i = c} |f_i - P_c|^2 / K over a batch, so df_i = 2 (f_i - P_{y_i}) / (K n_{y_i}).
A trace is the mean over samples of the squared norm of the gradient of that sample's loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy64 import (
    BODY,
    CLIENTS,
    HEAD,
    START,
    Array,
    Labels,
    Weights,
    backward,
    class_means,
    close,
    forward,
    gradient,
    mean,
    only,
    squared,
    step,
    train,
)
from tiny import bench, plan_of, run
from torch import nn

from headwise.contract.averaging import Shared
from headwise.engine.client.client_bench import ClientBench
from headwise.methods import fedas
from headwise.methods.fedas import FedAS, Own
from headwise.methods.fedper import FedPer
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings.options import Kernels, Train
from headwise.testing.toy import toy_plan

LR, EPOCHS, ALIGN_LR = 0.5, 2, 0.2


def align(w: Weights, last: Weights, x: Array, y: Labels, epochs: int) -> Weights:
    target = class_means(forward(last, x).f, y)
    for _ in range(epochs):
        made = forward(w, x)
        df = np.stack([2 * (f - target[s]) / (2 * (y == s).sum()) for f, s in zip(made.f, y.tolist(), strict=True)])
        w = step(w, backward(w, x, made, 0 * made.z, df), ALIGN_LR, BODY)
    return w


def trace(w: Weights, x: Array, y: Labels, fisher: str) -> float:
    if fisher == "batches":
        return squared(gradient(w, x, y))
    return sum(squared(gradient(w, x[[i]], y[[i]])) for i in range(len(y))) / len(y)


@pytest.mark.parametrize("large", [0, 100_000], ids=["large", "small"])
@pytest.mark.parametrize(("fisher", "first"), [("samples", False), ("batches", False), ("batches", True)])
def test_two_rounds(fisher: Any, first: bool, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `align_first`, even the first body moves: its features are not yet the means of their classes."""
    monkeypatch.setattr(fedas, "LARGE", large)
    body, last = only(START, BODY), list[Weights]()
    own = [START] * 3
    for t in (1, 2):
        begun = [body | only(w, HEAD) for w in own]
        if t > 1 or first:
            begun = [align(w, old, *c, epochs=1) for w, old, c in zip(begun, own, CLIENTS, strict=True)]
        own = [train(w, *c, LR, EPOCHS) for w, c in zip(begun, CLIENTS, strict=True)]
        traces = [trace(w, *c, fisher) for w, c in zip(own, CLIENTS, strict=True)]
        body = mean([only(w, BODY) for w in own], traces)
        last = own
    assert max(traces) > 2 * min(traces)  # the weights matter
    end = run(plan_of(FedAS(align_lr=ALIGN_LR, fisher=fisher, align_first=first), rounds=2, epochs=EPOCHS))
    close(end.server.w, body)
    for c, w in enumerate(last):
        close(end.states[c].me.w | end.states[c].me.h, w)


def test_the_code_sums_over_batches() -> None:
    """Client 2 has three samples in batches of one: the sum of all squared norms, three times the mean."""
    method, plans = FedAS(align_lr=0.0), {"batch": 1, "lr": 1e-9}
    down = Shared(plan_of().models[0].params("body"))
    traces = [
        m.local_update(m.client_init(bench(plan_of(m), 2)), down, bench(plan_of(m, **plans), 2)).up.trace
        for m in (method, FedAS(align_lr=0.0, fisher="batches"))
    ]
    expected = trace(START, *CLIENTS[2], "samples")
    np.testing.assert_allclose(traces, [expected, 3 * expected], rtol=1e-5)


def test_many_steps_of_alignment_bring_the_features_near() -> None:
    """What a client uses after a download is the aligned body under its head."""
    method, (x, y) = FedAS(align_lr=ALIGN_LR, align_epochs=3), CLIENTS[2]
    other = plan_of().models[0].params().map(lambda t: t * 0.5 + 0.25)
    me = Own(other.select("body."), other.select("head."))
    down = Shared(plan_of().models[0].params("body"))
    model = method.personalize(me, down, bench(plan_of(method), 2))
    last = {k: t.double().numpy() for k, t in other.items()}
    expected = align(only(START, BODY) | only(last, HEAD), last, x, y, 3)
    close(model.params(), expected)


def test_without_alignment_and_with_equal_traces_it_is_fedper() -> None:
    """Of clients with the same samples, all traces are the same, and so are FedPer's weights."""
    same = [plan_of().data.client(2).train] * 3
    clients = [(s.x, s.y) for s in same]
    mine, per = (run(plan_of(m, clients, rounds=2)) for m in (FedAS(align_lr=0.0), FedPer()))
    close(mine.server.w, {k: t.double().numpy() for k, t in per.server.w.items()})
    for c in range(3):
        close(mine.states[c].me.h, {k: t.double().numpy() for k, t in per.states[c].me.h.items()})


def test_gradients_of_single_samples_go_through_convolutions() -> None:
    """Where the native kernels replace torch's: `torch.func` can't look into them."""
    layers = (nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.ReLU())
    m = SplitModel(nn.Sequential(*layers), nn.Linear(4, 4))
    traces = list[float]()
    both: tuple[Kernels, ...] = ("fast", "plain")
    for kernels in both:
        plan = toy_plan(FedAS(), models=[m], rounds=1, train=Train(batch=4, lr=1e-9), kernels=kernels)
        local = ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0)
        method = FedAS()
        traces.append(method.local_update(method.client_init(local), Shared(m.params("body")), local).up.trace)
    assert traces[0] > 0
    np.testing.assert_allclose(traces[0], traces[1], rtol=1e-4)
