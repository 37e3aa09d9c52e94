"""What FedRoD, FedCP, GPFL, FML, FedKD, FD and FedProto become at the ends of their options, over whole runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from plain import server, toy_plan
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fd import FD
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedcp import FedCP
from headwise.methods.fedkd import FedKD
from headwise.methods.fedper import FedPer, OwnHead
from headwise.methods.fedproto import FedProto
from headwise.methods.fedrod import FedRoD
from headwise.methods.fml import FML
from headwise.methods.gpfl import GPFL
from headwise.methods.standalone import Standalone
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings.options import Train
from headwise.testing.toy import AWKWARD, FEATURES, SOME, Recorder, federation, network, play

EQUAL = ((9, 0, (0, 1)), (9, 0, (1, 2, 3)), (9, 0, (0, 1, 2, 3)))  # clients of the same size
BALANCED = ((12, 0, (0, 1, 2, 3)), (8, 0, (0, 1, 2, 3)), (20, 0, (0, 1, 2, 3)))  # of different size, classes alike
TRAIN = Train(batch=4, lr=0.1, epochs=2, momentum=0.5)
X = torch.linspace(-2, 2, 5 * FEATURES).view(5, FEATURES)


def plan_of(method: Any, *, clients: Any = AWKWARD, ratio: float = 1.0, models: Any = ()) -> Plan:
    return toy_plan(method, data=federation(clients), ratio=ratio, train=TRAIN, models=models)


def bench(plan: Plan, client: int = 0, t: int = 1) -> ClientBench:
    return ClientBench(plan, client, t, purpose="fit", kept=Params(), trained=0)


def identical(a: Params, b: Params) -> None:
    assert a.keys() == b.keys() and len(a)
    assert all(torch.equal(t, b[k]) for k, t in a.items())


def same_clients(run: Recorder, alone: Recorder) -> None:
    """The models that all clients have in the end, and what was measured of them on the way."""
    states, others = run.ended[-1].states, alone.ended[-1].states
    assert states.keys() == others.keys()
    for c in states:
        identical(states[c].me.w, others[c].me.w)
    scores = [[{m: row.get(m) for m in ("pre", "post", "stale")} for row in r.trace().parse()] for r in (run, alone)]
    assert scores[0] == scores[1]


def starting_as(method: Any, norm: bool) -> SplitModel:
    """The toy network with the parameters that this method's clients start from."""
    m = network(norm=norm)
    m.load_state_dict(method.client_init(bench(plan_of(method, models=[network(norm=norm)]), t=0)).w)
    return m


@pytest.mark.parametrize("method", [FD(lam=0.0), FedProto(lam=0.0)], ids=repr)
def test_a_loss_without_weight_is_standalone(method: Any) -> None:
    same_clients(*(play(plan_of(m, ratio=SOME)) for m in (method, Standalone())))


def test_fd_of_one_client_is_standalone() -> None:
    """Nobody else is there to teach it, whatever the weight."""
    one = ((20, 0, (0, 1, 2)),)
    same_clients(*(play(plan_of(m, clients=one)) for m in (FD(lam=3.0), Standalone())))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("method", [FML(alpha=1.0, clip=1e6), FedKD(distill=False, clip=1e6)], ids=repr)
def test_a_model_that_is_not_taught_is_standalone(method: Any, norm: bool) -> None:
    """From the same start, bit for bit: the second model beside it leaves its BatchNorm statistics alone. Nothing is
    clipped, for the two gradients are clipped together."""
    run = play(plan_of(method, ratio=SOME, models=[network(norm=norm)]))
    same_clients(run, play(plan_of(Standalone(), ratio=SOME, models=[starting_as(method, norm)])))


def test_a_meme_that_is_not_taught_is_fedavg() -> None:
    """FML's mean is uniform, so that clients must be of the same size."""
    run, fedavg = (play(plan_of(m, clients=EQUAL)) for m in (FML(beta=1.0), FedAvg()))
    identical(server(run).w, server(fedavg).w)


def test_a_mentee_that_is_not_taught_and_not_compressed_is_fedavg() -> None:
    """w_0 plus the sum of the rounds' mean changes is the last mean of models, up to rounding."""
    method = FedKD(distill=False, energy_start=1.0, energy_end=1.0)
    run, fedavg = (play(plan_of(m, clients=EQUAL)) for m in (method, FedAvg()))
    change, start = server(run).total, network().params()
    for k, t in start.items():
        matrix = [change[f"{name}/{k}"] for name in ("U", "sigma", "V") if f"{name}/{k}" in change]
        changed = matrix[0] * matrix[1] @ matrix[2] if matrix else change[f"whole/{k}"]
        assert_close(t + changed, server(fedavg).w[k], atol=1e-6, rtol=0)


def test_compression_sends_less_and_loses_little() -> None:
    """The less energy, the fewer bytes; at least the share of energy is kept, so that the mentee stays near."""

    def up(energy: float) -> list[int]:
        run = play(plan_of(FedKD(distill=False, energy_start=energy, energy_end=energy), models=[network(hidden=24)]))
        return [row["bytes_up"] for row in run.trace().parse()]

    sizes = [sum(up(energy)) for energy in (1.0, 0.98, 0.5)]
    assert sizes[0] > sizes[1] > sizes[2]
    whole = play(plan_of(FedAvg(), models=[network(hidden=24)])).trace().parse()
    assert sizes[0] <= sum(row["bytes_up"] for row in whole)  # a matrix is never sent as factors larger than itself


def test_fedrod_with_equal_class_counts_is_fedavg() -> None:
    """A constant added to all logits changes nothing: the generic branch is FedAvg's model bit for bit."""
    run, fedavg = (play(plan_of(m, clients=BALANCED)) for m in (FedRoD(), FedAvg()))
    identical(server(run).w, server(fedavg).w)


def test_fedrod_with_unequal_class_counts_is_not() -> None:
    run, fedavg = (play(plan_of(m)) for m in (FedRoD(), FedAvg()))
    assert not torch.equal(server(run).w["head.bias"], server(fedavg).w["head.bias"])


def test_fedcp_with_equal_heads_needs_no_policy() -> None:
    """a + b = 1, so that V(a f) + V(b f) + 2c = V f + 2c whatever the policy network says."""
    method = FedCP()
    plan = plan_of(method)
    w, m = method.server_init(ServerBench(plan, 0)).w, network()
    rng = torch.Generator().manual_seed(0)
    other = Params({k: torch.randn(t.shape, generator=rng) if k.startswith("cpn.") else t for k, t in w.items()})
    for down in (w, other):
        z = method.personalize(method.client_init(bench(plan, t=0)), Shared(down), bench(plan))(X)
        assert_close(z, m(X) + m.head.bias)


def test_fedcp_with_an_indifferent_policy_is_the_mean_of_two_heads() -> None:
    """A policy of zeros halves the features: V_i f/2 + c_i + V_g f/2 + c_g."""
    method = FedCP()
    plan = plan_of(method)
    w = method.server_init(ServerBench(plan, 0)).w
    w = Params({k: torch.zeros_like(t) if k.startswith("cpn.1") else t for k, t in w.items()})
    me = dataclasses.replace(method.client_init(bench(plan, t=0)), h=bench(plan).random_head("another"))
    m, f = network(), network().body(X)
    wanted = f @ (me.h["head.weight"] + m.head.weight).T / 2 + me.h["head.bias"] + m.head.bias
    assert_close(method.personalize(me, Shared(w), bench(plan))(X), wanted)


def test_fedcp_stays_nearer_to_the_global_features_the_larger_lam() -> None:
    """With a rate at which so strong a pull does not overshoot."""
    far: list[float] = []
    for lam in (0.0, 1.0, 5.0):
        method = FedCP(lam=lam)
        plan = plan_of(method).with_settings(train=Train(batch=4, lr=0.02, epochs=4))
        start = method.server_init(ServerBench(plan, 0))
        up = method.local_update(method.client_init(bench(plan, t=0)), start, bench(plan)).up.w
        trained = network()
        trained.load_state_dict({**trained.state_dict(), **up.select("body.")})
        far.append((trained.body(X) - network().body(X)).square().mean().item())
    assert far[0] > far[1] > far[2]


def test_gpfl_with_a_valve_that_does_nothing_is_fedper() -> None:
    """A scale and a shift of zero leave features as they are, which are not negative."""
    method = GPFL()
    plan = plan_of(method)
    w = method.server_init(ServerBench(plan, 0)).w
    closed = Params({k: torch.zeros_like(t) if k.split(".")[1] == "2" and k[0] in "gb" and "body" not in k else t
                     for k, t in w.items()})  # fmt: skip
    h = bench(plan).random_head("another")
    me = dataclasses.replace(method.client_init(bench(plan, t=0)), h=h)
    fedper = FedPer().personalize(OwnHead(h), Shared(w.select("body.")), bench(plan))
    assert_close(method.personalize(me, Shared(closed), bench(plan))(X), fedper(X))


def test_gpfl_tells_clients_apart_by_their_class_frequencies_alone() -> None:
    """With the same head, clients of the same frequencies predict the same; with equal embeddings all clients do."""
    method = GPFL()
    plan = plan_of(method, clients=(*BALANCED, (9, 0, (0, 1))))
    w = method.server_init(ServerBench(plan, 0)).w
    alike = Params({k: t[:1].repeat(4, 1) if k == "gce.weight" else t for k, t in w.items()})

    def scores(down: Params, client: int) -> torch.Tensor:
        return method.personalize(method.client_init(bench(plan, t=0)), Shared(down), bench(plan, client))(X)

    assert_close(scores(w, 0), scores(w, 1))
    assert (scores(w, 0) - scores(w, 3)).abs().max() > 1e-3
    assert_close(scores(alike, 0), scores(alike, 3))


@pytest.mark.parametrize("method", [FML(), FedKD(energy_start=1.0, energy_end=1.0)], ids=repr)
def test_what_travels_is_of_the_servers_architecture(method: Any) -> None:
    """A small model for all, beside two larger ones of the clients' own."""
    small, large = network(width=2), [network(hidden=8), network(width=7)]
    run = play(dataclasses.replace(plan_of(method, models=large), server_model=small))
    for row in run.trace().parse():
        assert 0 < row["bytes_up"] <= 4 * small.params().numel() * len(AWKWARD)
    for c, state in run.ended[-1].states.items():
        assert {k: t.shape for k, t in state.me.w.items()} == {k: t.shape for k, t in large[c % 2].state().items()}
