"""One round of FedAFK by hand (arXiv 2410.15073, Eqs. (3)-(9), Algorithm 1), with one batch and two in their order.

The gradient of the cross-entropy is `byhand.gradient`. Eq. (8) with p = softmax(f), q = softmax(f_G) over the features:

    KL(p || q) = 1/n sum_i sum_k p_k (log p_k - log q_k),   dKL(p || q)/df_k = 1/n p_k (log p_k - log q_k - KL_i)
    KL(q || p) = 1/n sum_i sum_k q_k (log q_k - log p_k),   dKL(q || p)/df_k = 1/n (p_k - q_k)

because dp_j/df_k = p_j ([j = k] - p_k); with d = dKL/df * [f > 0], the body's gradients are d^T x and sum d. Eq. (6):
dL/dmu = <theta_i - theta_G, dL/dtheta>, taken at theta_i (`chain`) or at mu theta_i + (1 - mu) theta_G (`exact`).

q is that of theta_G as it is trained, or of the theta_G^{t-1} that was received (Eq. (5) as printed). The order is that
of Algorithm 1, everything from its value before the batch, or that of Section 4.3: an epoch on theta_G, then one on
theta_i, then one on mu. mu steps after each batch, or once per epoch along the mean of the batches' gradients. With
momentum m and weight decay d, a weight w moves by -eta v, v <- m v + dL/dw + d w; mu
has neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, Weights, close, drawn, features, gradient, only, weighted
from tiny import bench, floats, plan_of
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedafk import FedAFK, Own
from headwise.settings.options import Train

LR, MU, SIZES = 0.05, 0.4, [10, 6]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]


def plan(method: FedAFK, *, batch: int = 10, epochs: int = 1, lr: float = LR, **train: float) -> Plan:
    return plan_of(method, CLIENTS, batch=batch, lr=lr, epochs=epochs, **train)


def logs(f: Tensor) -> Tensor:
    """log softmax."""
    return f - f.exp().sum(1, keepdim=True).log()


class ByHand:
    """The client half in plain tensors: `own` is theta_i under phi_i, `world` is theta_G under phi_rd."""

    def __init__(self, method: FedAFK, own: Weights, world: Weights, train: Train, mu: float = MU) -> None:
        self.method, self.own, self.world, self.train, self.lr = method, own, world, train, train.lr
        self.received = world
        self.mu = self.raw = torch.tensor(mu).double()
        self.slopes: list[Tensor] = []
        self.fresh()

    def fresh(self) -> None:
        """Momentum begins anew."""
        self.velocity: dict[tuple[str, str], Tensor] = {}

    def stepped(self, who: str, w: Weights, g: Weights, learns: tuple[str, ...]) -> Weights:
        for k in learns:
            v = self.velocity.get((who, k), 0 * w[k])
            self.velocity[who, k] = self.train.momentum * v + g[k] + self.train.weight_decay * w[k]
        return {k: t - self.lr * self.velocity[who, k] if k in learns else t for k, t in w.items()}

    @property
    def teacher(self) -> Weights:
        return self.received if self.method.target == "received" else self.world

    def total(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Eq. (9) at this model, as a number."""
        f = features(w, x)
        p, q = logs(f), logs(features(self.teacher, x))
        ce = -logs(f @ w[HEAD[0]].T + w[HEAD[1]])[torch.arange(len(y)), y].mean()
        kl = p.exp() * (p - q) if self.method.kl == "local_global" else q.exp() * (q - p)
        return (1 - self.method.lam) * ce + self.method.lam * kl.sum(1).mean()

    def slope(self, w: Weights, x: Tensor, y: Tensor) -> Weights:
        """The gradient of Eq. (9) with respect to the body of this model."""
        f = features(w, x)
        p, q = logs(f), logs(features(self.teacher, x))
        if self.method.kl == "local_global":
            d = p.exp() * (p - q - (p.exp() * (p - q)).sum(1, keepdim=True)) / len(y)
        else:
            d = (p.exp() - q.exp()) / len(y)
        d = d * (f > 0)
        kl, ce = {A: d.T @ x.double(), B: d.sum(0)}, gradient(w, x, y)
        return {k: (1 - self.method.lam) * ce[k] + self.method.lam * kl[k] for k in BODY}

    def between(self, mu: Tensor | float) -> Weights:
        """Eq. (3), under phi_i."""
        return {**self.own, **{k: mu * self.own[k] + (1 - mu) * self.world[k] for k in BODY}}

    def batch(self, x: Tensor, y: Tensor, what: str = "G i mu") -> None:
        """Eqs. (4)-(6), lines 9-11: everything from its value before the batch."""
        g, g_G = self.slope(self.own, x, y), gradient(self.world, x, y)
        at = g if self.method.mu_grad == "chain" else self.slope(self.between(self.mu), x, y)
        slope = sum(((self.own[k] - self.world[k]) * at[k]).sum() for k in BODY)
        if "G" in what:
            self.world = self.stepped("G", self.world, g_G, BODY + HEAD if self.method.global_head else BODY)
        if "i" in what:
            self.own = self.stepped("i", self.own, g, BODY)
        if "mu" in what:
            self.slopes.append(torch.as_tensor(slope))
            if self.method.mu_step == "batch":
                self.step_mu()
            self.mix("batch")

    def step_mu(self) -> None:
        """Eq. (6), line 11, along the mean of the gradients since the last step."""
        self.raw = self.mu - self.lr * sum(self.slopes) / len(self.slopes)
        self.mu, self.slopes = self.raw.clamp(0, 1), []

    def epoch(self, orders: Iterator[Tensor], x: Tensor, y: Tensor, size: int) -> None:
        """Lines 9-12, or steps (2) to (4) of Section 4.3, over as many orders of the samples as that takes."""
        for what in ("G i mu",) if self.method.order == "joint" else ("G", "i", "mu"):
            self.fresh()
            for i in next(orders).split(size):
                self.batch(x[i], y[i], what)
        if self.method.mu_step == "epoch":
            self.step_mu()
        self.mix("epoch")

    def mix(self, when: str) -> None:
        """Line 12, if it is due now."""
        if self.method.mix == when:
            self.own = self.between(self.mu)

    def head_batch(self, x: Tensor, y: Tensor) -> None:
        """Eq. (7), line 14."""
        self.own = self.stepped("head", self.own, gradient(self.own, x, y), HEAD)


def situation(method: FedAFK, p: Plan, *, own: int = 2, mu: float = MU) -> tuple[Own, Shared, ByHand]:
    """A client in the middle of a run, as records and by hand."""
    random = {k: t.double() for k, t in bench(p).random_head("fedafk").items()}
    world = drawn(4) if method.global_head else {**drawn(4), **random}
    me = Own(floats(drawn(own, BODY)), floats(drawn(own, HEAD)), torch.tensor(mu))
    down = Shared(floats(world if method.global_head else only(world, BODY)))
    return me, down, ByHand(method, drawn(own), world, p.experiment.train, mu)


CASES = [
    FedAFK(),
    FedAFK(mu_grad="exact"),
    FedAFK(kl="global_local", lam=0.8),
    FedAFK(mix="batch"),
    FedAFK(mix="never"),
]
CASES += [FedAFK(mix="batch", mu_grad="exact", lam=0.2), FedAFK(global_head=True), FedAFK(head_epochs=2)]
CASES += [FedAFK(target="received", lam=0.8), FedAFK(target="received", mu_grad="exact", kl="global_local", lam=0.8)]
CASES += [FedAFK(order="sequential"), FedAFK(order="sequential", mu_grad="exact", lam=0.8, target="received")]
CASES += [FedAFK(order="sequential", mix="batch"), FedAFK(order="sequential", global_head=True)]
CASES += [FedAFK(mu_step="epoch"), FedAFK(mu_step="epoch", mix="batch", mu_grad="exact")]
CASES += [FedAFK(mu_step="epoch", order="sequential", lam=0.8)]

HEAVY = {"momentum": 0.5, "weight_decay": 0.1}


@pytest.mark.parametrize(("epochs", "batch", "train"), [(1, 10, {}), (1, 5, {}), (2, 5, {}), (2, 5, HEAVY)])
@pytest.mark.parametrize("method", CASES, ids=repr)
def test_client_half(method: FedAFK, batch: int, epochs: int, train: dict[str, float]) -> None:
    """Algorithm 1, lines 7-15; the head's epoch of lines 13-14 comes once, after all E epochs."""
    p = plan(method, batch=batch, epochs=epochs, **train)
    me, down, hand = situation(method, p)
    local, rng, (x, y) = bench(p), torch.Generator(), CLIENTS[0]
    rng.set_state(local.rng.get_state())
    update = method.local_update(me, down, local)
    orders = (torch.randperm(len(y), generator=rng) for _ in itertools.count())
    for _ in range(epochs):
        hand.epoch(orders, x, y, batch)
    for i in (i for _ in range(method.head_epochs) for i in torch.randperm(len(y), generator=rng).split(batch)):
        hand.head_batch(x[i], y[i])
    close(dict(update.up.w), hand.world if method.global_head else only(hand.world, BODY))
    close(dict(update.me.theta | update.me.phi), hand.own)
    close(update.model.state_dict(), hand.own)
    assert_close(update.me.mu.double(), hand.mu, atol=1e-6, rtol=0)
    assert 0 < hand.mu < 1 and abs(hand.mu - MU) > 1e-4  # it has moved, and no bound hides where to


@pytest.mark.parametrize("kl", ["local_global", "global_local"])
@pytest.mark.parametrize("mu_grad", ["chain", "exact"])
def test_gradients_are_slopes(mu_grad: str, kl: str) -> None:
    """The step of mu, and that of every entry of theta_i, against central differences of Eq. (9) itself."""
    method = FedAFK(mu_grad=mu_grad, kl=kl, lam=0.4, mix="never", head_epochs=0)
    p = plan(method)
    me, down, hand = situation(method, p)
    after, tiny = method.local_update(me, down, bench(p)).me, 1e-6
    at = 1.0 if mu_grad == "chain" else MU  # on the line from theta_G (0) to theta_i (1)
    high, low = (hand.total(hand.between(at + s * tiny), *CLIENTS[0]) for s in (1, -1))
    assert_close(after.mu.double(), hand.mu - LR * (high - low) / (2 * tiny), atol=1e-6, rtol=0)
    for name in BODY:
        for k, entry in enumerate(torch.eye(hand.own[name].numel()).double()):
            step = tiny * entry.view_as(hand.own[name])
            high, low = (hand.total({**hand.own, name: hand.own[name] + s * step}, *CLIENTS[0]) for s in (1, -1))
            moved = (hand.own[name] - after.theta[name].double()).flatten()[k]
            assert_close(moved, LR * (high - low) / (2 * tiny), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("mix", "mu_step"), [("epoch", "batch"), ("batch", "batch"), ("epoch", "epoch")])
@pytest.mark.parametrize(("own", "bound"), [(2, 0.0), (17, 1.0)])
def test_mu_is_clipped(own: int, bound: float, mix: str, mu_step: str) -> None:
    """A large step takes mu out of [0, 1]; it stays at the bound, and Eq. (3) mixes with that."""
    method = FedAFK(head_epochs=0, mix=mix, mu_step=mu_step)
    p = plan(method, lr=5.0)
    me, down, hand = situation(method, p, own=own, mu=0.5)
    update = method.local_update(me, down, bench(p))
    hand.batch(*CLIENTS[0])
    if mu_step == "epoch":
        hand.step_mu()
    hand.mix("epoch")
    assert hand.raw < 0 if bound == 0 else hand.raw > 1
    assert update.me.mu.item() == bound
    close(dict(update.me.theta), only(hand.own, BODY))
    if bound == 0:
        close(dict(update.me.theta), only(hand.world, BODY))


@pytest.mark.parametrize("global_head", [False, True])
def test_server_half(global_head: bool) -> None:
    """Line 16: k_i / sum k_j = 10/16 and 6/16. With a global head (Section 4.4), that is a model for everybody."""
    method, names = FedAFK(global_head=global_head), BODY + HEAD if global_head else BODY
    central, ups = ServerBench(plan(method), 1), [drawn(5, names), drawn(6, names)]
    first = method.server_init(central)
    close(dict(first.w), only(START, names))
    server = method.aggregate(first, [Reply(c, Shared(floats(ups[c])), SIZES[c]) for c in (0, 1)], central)
    close(dict(server.w), weighted(ups, names, SIZES))
    model = method.global_model(server, central)
    assert (model is not None) == global_head
    if model is not None:
        close(model.state_dict(), weighted(ups, names, SIZES))


def test_random_head() -> None:
    """One draw for all, the same in every round and not the initial head; or one for each client."""

    def uploads(method: FedAFK) -> list[Tensor]:
        """theta_G after one step from the same start on the same samples, of two clients and of a later round."""
        p = plan_of(method, [CLIENTS[0]] * 2, batch=10, lr=LR)
        me, down, _ = situation(method, p)
        return [method.local_update(me, down, bench(p, c, t)).up.w[A] for c, t in ((0, 1), (1, 1), (1, 3))]

    one, other, later = uploads(FedAFK())
    assert_close(one, other)
    assert_close(other, later)
    one, other, later = uploads(FedAFK(random_head="per_client"))
    assert (one - other).abs().max() > 1e-4
    assert_close(other, later)
    assert (bench(plan(FedAFK())).random_head("fedafk")["head.weight"] - START["head.weight"]).abs().max() > 0.1


def test_the_personal_model_takes_nothing_from_a_download() -> None:
    p = plan(FedAFK())
    me, down, hand = situation(FedAFK(), p)
    close(FedAFK().personalize(me, down, bench(p)).state_dict(), hand.own)
