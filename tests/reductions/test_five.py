"""What FedAH, FedFTHA, FedAFK, FedGMH and FedGH become at the ends of their options, over whole runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain import toy_plan
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.events import RoundEnded
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods import fedafk, fedah, fedftha
from headwise.methods.fedafk import FedAFK
from headwise.methods.fedah import FedAH
from headwise.methods.fedftha import FedFTHA
from headwise.methods.fedgh import FedGH
from headwise.methods.fedgmh import FedGMH, Heads
from headwise.methods.fedper import FedPer
from headwise.methods.fedrep import FedRep
from headwise.methods.standalone import Standalone
from headwise.params import Params
from headwise.records import pack, same
from headwise.settings.options import Train
from headwise.testing.toy import AWKWARD, CLASSES, EASY, SOME, WIDTH, federation, play
from headwise.testing.watching import Listening

EQUAL = ((9, 0, (0, 1)), (9, 0, (1, 2, 3)), (9, 0, (0, 1, 2, 3)))  # clients of the same size


def plan_of(method: Any, *, clients: Any = AWKWARD, ratio: float = 1.0, train: Train | None = None) -> Plan:
    data = federation(clients)
    return toy_plan(method, data=data, ratio=ratio, train=train or Train(batch=4, lr=0.1, epochs=2))


def rounds(method: Any, **settings: Any) -> list[RoundEnded]:
    return play(plan_of(method, **settings)).ended


def bench(plan: Plan, client: int, t: int) -> ClientBench:
    return ClientBench(plan, client, t, purpose="fit", kept=Params(), trained=0)


def close(a: Params, b: Params, tolerance: float = 1e-5) -> None:
    assert a.keys() == b.keys() and len(a)
    for k, t in a.items():
        assert_close(t, b[k], atol=tolerance, rtol=tolerance)


def identical(a: Params, b: Params) -> None:
    close(a, b, tolerance=0.0)


def drawn(like: Params, seed: int) -> Params:
    rng = torch.Generator().manual_seed(seed)
    return like.map(lambda t: torch.randn(t.shape, generator=rng))


def test_fedah_without_global_head_is_fedrep() -> None:
    """W = 0 that never learns: h^_i = h_i, and everything else is FedRep's, bit for bit."""
    mine, reps = FedAH(initial_weight=0.0, weight_epochs=0, head_epochs=3), FedRep(head_epochs=3)
    for a, b in zip(rounds(mine, ratio=SOME), rounds(reps, ratio=SOME), strict=True):
        identical(a.progress.server.w.select("body."), b.progress.server.w)
        for c in a.states.keys() | b.states.keys():
            identical(a.states[c].me.h, b.states[c].me.h)


def test_fedah_with_a_weight_rate_of_zero_is_fedrep() -> None:
    """The pass over W uses up an order of samples; with one batch per epoch that is no difference but rounding."""
    methods = FedAH(initial_weight=0.0, weight_lr=0.0, head_epochs=2), FedRep(head_epochs=2)
    mine, rep = (rounds(m, train=Train(batch=100, lr=0.1))[-1].progress.server.w for m in methods)
    close(mine.select("body."), rep)


def test_fedah_with_weights_of_one_starts_from_the_global_head() -> None:
    """W = 1 that never learns: what a client starts from is the server's model, as in FedAvg."""
    plan = plan_of(FedAH(initial_weight=1.0, weight_lr=0.0))
    for ended in play(plan).ended:
        server = ended.progress.server
        for c, state in ended.states.items():
            close(plan.method.personalize(state.me, server, bench(plan, c, 2)).params(), server.w)
    assert (ended.states[0].me.h["head.weight"] - server.w["head.weight"]).abs().max() > 1e-2  # own heads differ


def test_fedah_weights_stay_between_0_and_1() -> None:
    """However fast they learn; round 1 leaves them at 1 exactly, because both heads are the initial one."""
    ended = rounds(FedAH(weight_lr=50.0, weight_epochs=2))
    weights = [[t for s in e.states.values() for t in s.me.W.values()] for e in ended]
    assert all(((t >= 0) & (t <= 1)).all() for some in weights for t in some)
    assert all((t == 1).all() for t in weights[0]) and any((t < 1).any() for t in weights[-1])


@pytest.mark.parametrize("rate", [0.1, 5.0])
def test_fedah_exchanging_the_heads_mirrors_the_weights(rate: float) -> None:
    """h_i + (h - h_i) W = h + (h_i - h)(1 - W): the same loss, so the gradients differ by their sign alone."""
    method = FedAH(weight_lr=rate)
    plan = plan_of(method)
    body, head = plan.models[0].params("body"), plan.models[0].params("head")
    one, two, W = drawn(head, 1), drawn(head, 2), drawn(head, 3).map(torch.sigmoid)
    a = method.idle_update(fedah.Own(one, W), Shared(body | two), bench(plan, 0, 1))
    b = method.idle_update(fedah.Own(two, W.map(lambda t: 1 - t)), Shared(body | one), bench(plan, 0, 1))
    close(a.W, b.W.map(lambda t: 1 - t))
    close(a.h, b.h)
    assert (a.W["head.weight"] - W["head.weight"]).abs().max() > 1e-2


def test_fedftha_without_fine_tuning_is_fedper() -> None:
    """tau_head = 0, and clients of the same size: the weighted mean is the plain one, bit for bit."""
    for a, b in zip(rounds(FedFTHA(head_epochs=0), clients=EQUAL), rounds(FedPer(), clients=EQUAL), strict=True):
        identical(a.progress.server.G, b.progress.server.w)
        for c in range(len(EQUAL)):
            identical(a.states[c].me.h, b.states[c].me.h)


def global_head(method: FedFTHA, heads: list[Params], owned: list[list[bool]]) -> Params:
    central = ServerBench(plan_of(method), 1)
    server = method.server_init(central)
    ups = [fedftha.Up(server.G, h, torch.tensor(o)) for h, o in zip(heads, owned, strict=True)]
    server = method.aggregate(server, [Reply(c, up, 3 + c) for c, up in enumerate(ups)], central)
    model = method.global_model(server, central)
    assert model is not None
    return model.params("head")


def test_fedftha_heads_that_agree_and_owners_of_everything() -> None:
    """Equal heads are the global head, however it is made; where all own all classes, owner_mean is the mean."""
    heads = [drawn(plan_of(FedFTHA()).models[0].params("head"), s) for s in (5, 6, 7)]
    some = [[True, True, False, False], [False, True, True, False], [False, False, True, False]]
    for head_agg in ("mean", "owner_mean", "n_mean"):
        close(global_head(FedFTHA(head_agg=head_agg), heads[:1] * 3, some), heads[0])
    close(*(global_head(FedFTHA(head_agg=a), heads, [[True] * CLASSES] * 3) for a in ("mean", "owner_mean")))


def test_fedafk_that_takes_nothing_is_standalone() -> None:
    """lambda = 0 and no mixing: the body's epochs under the frozen head, then one of the head on the frozen body."""
    plan = plan_of(FedAFK(lam=0.0, mu=1.0, mix="never"))
    last = play(plan).ended[-1]
    for c in range(len(AWKWARD)):
        w = plan.models[0].params()
        for t in range(1, plan.experiment.rounds + 1):
            local = bench(plan, c, t)
            m = local.model(w)
            local.sgd(m, only=m.body)
            local.sgd(m, only=m.head, epochs=1)
            w = m.params()
        close(last.states[c].me.theta | last.states[c].me.phi, w)


def test_fedafk_with_mu_of_zero_takes_the_global_body() -> None:
    """One client alone, one batch per epoch: theta_i is theta_G before each step, so mu stays 0 and theta_i follows."""
    plan = plan_of(FedAFK(mu=0.0), clients=(EASY[0],), train=Train(batch=100, lr=0.1, epochs=3))
    for ended in play(plan).ended:
        assert ended.states[0].me.mu == 0
        identical(ended.states[0].me.theta, ended.progress.server.w)
    assert (ended.progress.server.w["body.0.weight"] - plan.models[0].params()["body.0.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("kl", ["local_global", "global_local"])
def test_fedafk_knows_no_divergence_between_equal_bodies(kl: Any) -> None:
    """KL = 0, and its slope: with lambda = 1 the body stays; otherwise the step is (1 - lambda) of the supervised."""
    moved: dict[float, Params] = {}
    for lam in (0.0, 0.75, 1.0):
        method = FedAFK(lam=lam, kl=kl, mix="never")
        plan = plan_of(method, train=Train(batch=100, lr=0.1))
        w = plan.models[0].params()
        me = fedafk.Own(w.select("body."), w.select("head."), torch.tensor(0.5))
        moved[lam] = method.local_update(me, Shared(w.select("body.")), bench(plan, 0, 1)).me.theta - me.theta
    close(moved[1.0], moved[1.0].zeros())
    close(moved[0.75], 0.25 * moved[0.0])
    assert max(t.abs().max() for t in moved[0.0].values()) > 1e-3


def test_fedafk_sends_the_same_whatever_lambda_and_mu() -> None:
    methods = [FedAFK(), FedAFK(lam=1.0), FedAFK(mu=0.0), FedAFK(mix="never", mu_grad="exact"), FedAFK(mix="batch")]
    first, *others = (rounds(m, ratio=SOME)[-1] for m in methods)
    for other in others:
        identical(first.progress.server.w, other.progress.server.w)
        assert not same(first.states[0].me, other.states[0].me)


def test_fedgmh_equal_global_heads_are_their_combination() -> None:
    """The shares |D_m^s| / |D_m| add up to one, for every client."""
    method = FedGMH(merge="replace")
    plan = plan_of(method)
    server = Heads(dict.fromkeys(range(CLASSES), h := drawn(plan.models[0].params("head"), 4)))
    for c in range(len(AWKWARD)):
        me = method.client_init(bench(plan, c, 0))
        model = method.personalize(me, method.broadcast(server, c, ServerBench(plan, 1)), bench(plan, c, 1))
        close(model.params("head"), h)


def test_fedgmh_without_critical_parameters_is_standalone() -> None:
    """beta = 0: nothing global after the first participation; with first='keep', not even then."""
    keeps, alone = (rounds(m, ratio=SOME)[-1] for m in (FedGMH(beta=0.0, first="keep"), Standalone()))
    for c, state in keeps.states.items():
        identical(state.me.phi | state.me.h, alone.states[c].me.w)
    adopted, alone = rounds(FedGMH(beta=0.0))[-1], rounds(Standalone())[-1]  # in round 1 all heads are the initial one
    for c, state in adopted.states.items():
        close(state.me.phi | state.me.h, alone.states[c].me.w)


def test_fedgmh_with_all_parameters_critical_replaces_the_head() -> None:
    a, b = rounds(FedGMH(beta=1.0), ratio=SOME)[-1], rounds(FedGMH(merge="replace"), ratio=SOME)[-1]
    assert same(a.progress.server, b.progress.server)
    for c, state in a.states.items():
        identical(state.me.phi | state.me.h, b.states[c].me.phi | b.states[c].me.h)


@pytest.mark.parametrize("label", range(CLASSES))
def test_fedgmh_a_step_on_a_class_changes_its_head_alone(label: int) -> None:
    """And raises the logit of that class, on that class mean, under that head."""
    method = FedGMH(head_lr=0.1)
    central = ServerBench(plan_of(method), 1)
    before = Heads({s: drawn(central.init().params("head"), s) for s in range(CLASSES)})
    proto = torch.rand(1, WIDTH, generator=torch.Generator().manual_seed(0))
    after = method.aggregate(before, [Reply(0, ClassMeans(torch.tensor([label]).int(), proto), 5)], central)
    low, high = (s.heads[label]["head.weight"] @ proto[0] + s.heads[label]["head.bias"] for s in (before, after))
    assert high[label] > low[label]
    for s in set(range(CLASSES)) - {label}:
        identical(after.heads[s], before.heads[s])


@pytest.mark.parametrize("method", [FedGMH(), FedGMH(**FedGMH.presets["oa"]), FedGH()], ids=repr)
def test_no_body_ever_leaves_its_client(method: Any) -> None:
    """Up go labels and class means, of exactly the size of these; down come heads."""
    plan = plan_of(method)
    executor = Listening(plan)
    play(plan, executor)
    for training in executor.trainings:
        c = len(set(plan.data.client(training.job.client).train.y.tolist()))
        sent = {k: tuple(t.shape) for k, t in pack(training.answer.up).tensors.items()}
        assert sent == {"labels": (c,), "means": (c, WIDTH)}
        assert all(k.split("/")[-1].startswith("head.") for k in pack(training.job.down).tensors)


def test_gmh_oa_that_replaces_the_head_is_fedgh() -> None:
    methods = FedGMH(heads="one", merge="replace", head_lr=0.2), FedGH(header_step="per_proto", header_lr=0.2)
    for a, b in zip(*(rounds(m, ratio=SOME) for m in methods), strict=True):
        identical(a.progress.server.heads[-1], b.progress.server.w)
        for c, state in a.states.items():
            identical(state.me.phi, b.states[c].me.phi)


def test_fedgh_with_a_rate_of_zero_keeps_its_header() -> None:
    plan = plan_of(FedGH(header_lr=0.0, header_epochs=2))
    for ended in play(plan).ended:
        identical(ended.progress.server.w, plan.models[0].params("head"))
