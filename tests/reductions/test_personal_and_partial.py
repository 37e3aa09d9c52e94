"""Limits of the methods that aggregate for each client, cluster clients, or share a part of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain import server, states, toy_plan
from torch import nn

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.data.federated import FederatedData
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.apple import APPLE
from headwise.methods.apple import Down as AppleDown
from headwise.methods.apple import Own as AppleOwn
from headwise.methods.cd2_pfed import CD2PFed
from headwise.methods.clusterfl import ClusterFL
from headwise.methods.fedala import FedALA
from headwise.methods.fedamp import FedAMP
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedavg_ft import FedAvgFT
from headwise.methods.fedbabu import FedBABU
from headwise.methods.fedbn import FedBN
from headwise.methods.fedcac import FedCAC, Up
from headwise.methods.fedfomo import Down, FedFomo, Own
from headwise.methods.standalone import Standalone
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import Nothing
from headwise.testing.toy import AWKWARD, CLASSES, FEATURES, SOME, Recorder, federation, network, play

MOMENTS = ("pre", "post", "stale", "global")


def runs(*methods: Any, **how: Any) -> list[Recorder]:
    return [play(toy_plan(m, **{"ratio": SOME, **how})) for m in methods]


def scores(recorder: Recorder, moments: tuple[str, ...] = MOMENTS) -> list[dict[str, Any]]:
    return [{m: row[m] for m in moments if m in row} for row in recorder.trace().parse()]


def assert_same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(t, b[k]) for k, t in a.items())


def assert_standalone(recorder: Recorder, **how: Any) -> None:
    """The very models of Standalone at every client and in every round."""
    alone = runs(Standalone(), **how)[0]
    mine, theirs = states(recorder), states(alone)
    assert mine.keys() == theirs.keys()
    for c, me in mine.items():
        assert_same(me.w, theirs[c].w)
    assert scores(recorder, ("pre", "post")) == scores(alone, ("pre", "post"))


def bench(plan: Plan, client: int, t: int = 2) -> ClientBench:
    return ClientBench(plan, client, t, purpose="fit", kept=Params(), trained=0)


@pytest.mark.parametrize(
    "method",
    [FedAMP(lam=0.0), FedAMP(detach_reg=True), FedAMP(detach_reg=True, lam=100.0), ClusterFL(pull=0.0, decay=0.0)],
    ids=repr,
)
def test_without_a_pull_everybody_is_alone(method: Any) -> None:
    assert_standalone(runs(method)[0])


def test_fedamp_with_the_papers_widths_is_nearly_standalone_unless_it_starts_from_the_cloud() -> None:
    """alpha_k = 10^4, lambda = 1, sigma = 10^6: the pull of 10^-4 is not felt; starting from u_i, the mixture is."""
    near, far, alone = runs(*(FedAMP(alpha=1e4, sigma=1e6, start=s) for s in ("own", "cloud")), Standalone(), ratio=1.0)
    distances = [max(float((states(r)[c].w - me.w).sq_norm()) for c, me in states(alone).items()) for r in (near, far)]
    assert 0 < distances[0] < 1e-6 < 1e-4 < distances[1]


def test_fedamp_of_far_models_attends_to_nobody() -> None:
    """exp(-x / sigma) vanishes: u_i = w_i, and the pull is to where training started, as in FedProx."""
    run = runs(FedAMP(sigma=1e-6), rounds=2)[0]
    method, last = FedAMP(sigma=1e-6), server(run)
    for c, w in last.w.items():
        assert_same(method.broadcast(last, c, ServerBench(toy_plan(method), 3)).w, w)


def test_fedfomo_without_models_begins_as_standalone_on_what_is_trained_on() -> None:
    plan = toy_plan(FedFomo(M=0))
    run = runs(FedFomo(M=0), rounds=1, ratio=1.0)[0]
    for c in range(len(AWKWARD)):
        local = bench(plan, c, 1)
        kept = local.hold_out(0.2)[0]
        alone = Standalone().local_update(Standalone().client_init(local), Nothing(), kept)
        assert_same(states(run)[c].w, alone.me.w)
    assert torch.equal(server(run).P, torch.eye(len(AWKWARD)))


def test_fedfomo_keeps_its_model_when_no_weight_is_positive() -> None:
    """The model it began from many times over: all weights are 0."""
    plan = toy_plan(FedFomo())
    me = Own(network().state(), network().state())
    mirror = Down({1: network().params(), 2: network().params()})
    one, other = (FedFomo().local_update(me, down, bench(plan, 0)) for down in (mirror, Down({})))
    assert one.up.weights.tolist() == [0, 0]
    assert_same(one.me.w, other.me.w)


def test_fedala_with_weights_of_one_in_all_layers_is_fedavg() -> None:
    ala, avg = runs(FedALA(p=10, weight_lr=0.0), FedAvg())
    assert ala.trace().server == avg.trace().server
    assert scores(ala) == scores(avg)


def test_fedala_with_weights_of_zero_in_all_layers_starts_from_the_own_model() -> None:
    """A W that can't leave 0: nothing of the global model is used."""
    plan = toy_plan(FedALA())
    method, local = FedALA(p=10, weight_lr=1e-30), bench(plan, 0)
    me = method.client_init(local)
    own = me.theta.map(lambda t: t + 1)
    zero = type(me)(own, me.W.zeros(), begun=True)
    assert_same(Params(method.personalize(zero, Shared(network().params()), local).state_dict()), own)


def test_fedala_weights_stay_in_bounds_and_begin_after_round_one() -> None:
    first, later = runs(FedALA(), rounds=1, ratio=1.0)[0], runs(FedALA(weight_lr=50.0), ratio=1.0)[0]
    assert not any(me.begun for me in states(first).values())
    assert all(torch.equal(t, torch.ones_like(t)) for me in states(first).values() for t in me.W.values())
    entries = torch.cat([t.flatten() for me in states(later).values() for t in me.W.values()])
    assert entries.min() >= 0 and entries.max() <= 1 and entries.min() < 1


def test_fedbn_without_batchnorm_is_fedavg() -> None:
    bn, avg = runs(FedBN(), FedAvg())
    assert_same(server(bn).w, server(avg).w)
    assert scores(bn) == scores(avg)
    assert [r["bytes_up"] for r in bn.trace().parse()] == [r["bytes_up"] for r in avg.trace().parse()]


def test_fedbn_is_fedavg_that_keeps_batchnorm_local() -> None:
    """The run's policy `local` and the method say the same, whatever the layers are called."""
    layers = nn.Sequential(nn.Linear(FEATURES, 5), nn.Sequential(nn.BatchNorm1d(5)), nn.ReLU())
    layers.load_state_dict(dict(zip(layers.state_dict(), network(norm=True).body.state_dict().values(), strict=True)))
    model = SplitModel(layers, network().head).eval()
    bn = runs(FedBN(), models=[model], buffers="params")[0]
    avg = runs(FedAvg(), models=[model], buffers="local")[0]
    assert_same(server(bn).w, server(avg).w)
    assert scores(bn, ("pre", "post")) == scores(avg, ("pre", "post"))


def test_fedbabu_without_fine_tuning_is_a_body_under_the_initial_head() -> None:
    plain, tuned = runs(FedBABU(finetune_epochs=0), FedBABU())
    assert plain.trace().server == tuned.trace().server and scores(plain) != scores(tuned)
    last, plan = server(plain), toy_plan(FedBABU(finetune_epochs=0))
    model = FedBABU(finetune_epochs=0).personalize(Nothing(), Shared(last.w), bench(plan, 0))
    assert_same(Params(dict(model.state_dict())), last.w | network().state("head"))


def test_fedbabu_fine_tunes_as_fedavg_ft_does() -> None:
    plan, w = toy_plan(FedBABU()), network().params()
    for what in ("all", "head"):
        babu = FedBABU(finetune=what, finetune_epochs=2).personalize(
            Nothing(), Shared(w.select("body.")), bench(plan, 0)
        )
        tuned = FedAvgFT(finetune=what, finetune_epochs=2).personalize(Nothing(), Shared(w), bench(plan, 0))
        assert_same(babu.state_dict(), tuned.state_dict())


def test_fedcac_without_critical_parameters_is_fedavg_with_equal_weights() -> None:
    """tau = 0; with clients of one size, equal weights are FedAvg's."""
    equal = [(12, 0, (0, 1)), (12, 0, (1, 2)), (12, 0, (2, 3))]
    data = federation(equal)
    cac, avg = runs(FedCAC(tau=0.0), FedAvg(), data=data)
    assert_same(server(cac).w, server(avg).w)
    assert scores(cac) == scores(avg)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_fedcac_with_equal_masks_sends_everybody_the_mean_over_all(tau: float) -> None:
    """All overlaps are 1, so all are collaborators: both means are the same."""
    method = FedCAC(tau=tau)
    central = ServerBench(toy_plan(method), 2)
    mask = network().params().map(lambda t: torch.arange(t.numel()).view(t.shape) < tau * t.numel())
    ups = [Up(network().params().map(lambda t, c=c: t + c), mask) for c in range(3)]
    last = method.aggregate(method.server_init(central), [Reply(c, up, 5) for c, up in enumerate(ups)], central)
    for c in range(3):
        down = method.broadcast(last, c, central)
        assert_same(down.custom, down.w)


def test_apple_of_itself_alone_is_standalone() -> None:
    """p = e_i and no learning of p: the personal model is the core model, which takes plain steps."""
    plan = toy_plan(APPLE())
    method, client = APPLE(relation_lr=0.0, core_lr="local"), 0
    alone = [torch.eye(len(AWKWARD))[client]]
    alone += [AppleDown({1: network().params().map(lambda t: t + 1)}, alone[0])]
    mine = method.local_update(AppleOwn(network().state(), alone[0]), alone[1], bench(plan, client))
    theirs = Standalone().local_update(Standalone().client_init(bench(plan, client)), Nothing(), bench(plan, client))
    for k, t in theirs.me.w.items():
        torch.testing.assert_close(mine.me.core[k], t, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.model.state_dict()[k], t, rtol=0, atol=1e-6)


def test_apple_of_one_client_is_standalone() -> None:
    data = federation()
    one = FederatedData(data.dataset, data.parts[:1])
    mine, theirs = runs(APPLE(relation_lr=0.0), Standalone(), data=one, ratio=1.0)
    for k, t in states(theirs)[0].w.items():
        torch.testing.assert_close(states(mine)[0].core[k], t, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 5.0])
def test_cd2_pfed_without_private_channels_is_fedavg(lam: float) -> None:
    """Nothing is private, so there is nothing to distil either."""
    cd2, avg = runs(CD2PFed(p=0.0, lam=lam), FedAvg())
    assert_same(server(cd2).w, server(avg).w)
    assert scores(cd2, ("pre", "post")) == scores(avg, ("pre", "post"))
    assert [r["bytes_up"] for r in cd2.trace().parse()] == [r["bytes_up"] for r in avg.trace().parse()]


def test_cd2_pfed_with_all_channels_private_shares_the_bias_of_the_head_alone() -> None:
    run = runs(CD2PFed(p=1.0, growth=0.0, lam=0.0), ratio=1.0)[0]
    assert server(run).w.numel() == CLASSES


def test_clusterfl_with_a_cluster_for_each_client_pulls_nobody_to_another() -> None:
    method = ClusterFL(clusters=100)
    run = runs(method, ratio=1.0)[0]
    assert sorted(server(run).cluster.tolist()) == list(range(len(AWKWARD)))
    for c in range(len(AWKWARD)):
        down = method.broadcast(server(run), c, ServerBench(toy_plan(method), 4))
        assert_same(down.w, server(run).models[c])
