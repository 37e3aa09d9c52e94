"""Limits in which methods with a second model, a correction or a meta-step become FedAvg or Standalone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from plain import server, states, toy_plan

from headwise.data.federated import FederatedData
from headwise.methods.apfl import APFL
from headwise.methods.ditto import Ditto
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedmeta import FedMeta
from headwise.methods.fednova import FedNova
from headwise.methods.fedphp import FedPHP
from headwise.methods.moon import MOON
from headwise.methods.per_fedavg import PerFedAvg
from headwise.methods.pfedme import PFedMe
from headwise.methods.scaffold import Scaffold
from headwise.methods.standalone import Standalone
from headwise.params import Params
from headwise.settings.options import Train
from headwise.testing.toy import AWKWARD, SOME, Recorder, federation, network, play

EQUAL = ((12, 0, (0, 1, 2)), (12, 0, (1, 2, 3)), (12, 0, (0, 3)))


def played(method: Any, **settings: Any) -> Recorder:
    return play(toy_plan(method, **settings))


def last_row(recorder: Recorder) -> dict[str, Any]:
    return recorder.trace().parse()[-1]


def same_bits(a: Params, b: Params) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(t, b[k]) for k, t in a.items())


def near(a: Params, b: Params, atol: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    for k, t in a.items():
        torch.testing.assert_close(t, b[k], rtol=0, atol=atol)


def equal_clients() -> FederatedData:
    return federation(EQUAL)


def monotonous(sizes: tuple[int, ...] = (4, 8, 12)) -> FederatedData:
    """Clients each of whose samples are all the same: any part of a batch is as good as the whole."""
    clients = tuple((n, 0, (c,)) for c, n in enumerate(sizes))
    data = federation(clients)
    x = data.dataset.x.copy()
    for parts in data.parts:
        x[parts.train] = x[parts.train[:1]]
    return FederatedData(dataclasses.replace(data.dataset, x=np.ascontiguousarray(x)), data.parts)


@pytest.mark.parametrize("norm", [False, True])
def test_ditto_without_pull_trains_alone(norm: bool) -> None:
    """Its own model has the very bits of Standalone's, BatchNorm statistics too, beside a global one."""
    tied, alone = (played(m, ratio=SOME, models=[network(norm=norm)]) for m in (Ditto(lam=0.0), Standalone()))
    for c, me in states(tied).items():
        same_bits(me.v, states(alone)[c].w)


def test_ditto_with_any_pull_leaves_the_global_model_alone() -> None:
    same_bits(server(played(Ditto(lam=0.0))).w, server(played(Ditto(lam=3.0))).w)


def test_pfedme_without_pull_never_moves_the_global_model() -> None:
    """w_i <- w_i - eta lam (w_i - theta) with lam = 0; theta is then trained alone from it, round after round."""
    run = played(PFedMe(lam=0.0))
    near(server(run).w, network().params())
    assert all(not torch.equal(me.theta["head.bias"], network().state()["head.bias"]) for me in states(run).values())


@pytest.mark.parametrize("norm", [False, True])
def test_apfl_with_nothing_of_the_own_model_is_fedavg(norm: bool) -> None:
    """alpha = 0: v-bar is w, and v never moves."""
    mixed, plain = (
        played(m, ratio=SOME, models=[network(norm=norm)]) for m in (APFL(alpha=0.0, adaptive=False), FedAvg())
    )
    same_bits(server(mixed).w, server(plain).w)
    for me in states(mixed).values():
        same_bits(me.v.restrict(server(plain).w), network(norm=norm).params())
    if not norm:
        assert last_row(mixed)["pre"] == last_row(plain)["pre"]


@pytest.mark.parametrize("norm", [False, True])
def test_apfl_with_the_own_model_alone_is_standalone(norm: bool) -> None:
    """alpha = 1: v-bar is v, trained with the whole gradient."""
    mixed, alone = (
        played(m, ratio=SOME, models=[network(norm=norm)]) for m in (APFL(alpha=1.0, adaptive=False), Standalone())
    )
    for c, me in states(mixed).items():
        same_bits(me.v, states(alone)[c].w)
    assert last_row(mixed)["pre"] == last_row(alone)["pre"]


def test_apfl_sends_the_same_whatever_is_mixed() -> None:
    same_bits(server(played(APFL(alpha=0.2))).w, server(played(FedAvg())).w)


def test_fedphp_without_transfer_sends_what_fedavg_sends() -> None:
    same_bits(server(played(FedPHP(lam=0.0), ratio=SOME)).w, server(played(FedAvg(), ratio=SOME)).w)


def test_fedphp_that_keeps_nothing_uses_the_model_it_trained_last() -> None:
    inherited, plain = (played(m) for m in (FedPHP(lam=0.0, mu=0.0), FedAvg()))
    assert last_row(inherited)["pre"] == last_row(inherited)["post"] == last_row(plain)["post"]


@pytest.mark.parametrize("norm", [False, True])
def test_moon_without_contrast_is_fedavg(norm: bool) -> None:
    contrasted, plain = (played(m, ratio=SOME, models=[network(norm=norm)]) for m in (MOON(mu=0.0), FedAvg()))
    assert contrasted.trace().rows == plain.trace().rows
    assert contrasted.trace().server == plain.trace().server


@pytest.mark.parametrize("norm", [False, True])
def test_scaffold_begins_as_fedavg_with_a_plain_mean(norm: bool) -> None:
    """All control variates are zero in round 1; clients of one size make n-weighted and plain means the same."""
    runs = [played(m, data=equal_clients(), models=[network(norm=norm)], rounds=1) for m in (Scaffold(), FedAvg())]
    near(server(runs[0]).w, server(runs[1]).w)


def test_scaffold_of_twins_is_fedavg_for_ever() -> None:
    """Clients with the same samples have the same control variates, so that c - c_i is zero."""
    one = federation(EQUAL[:1])
    data, train = FederatedData(one.dataset, one.parts * 3), Train(batch=100, lr=0.1, epochs=2)
    runs = [played(m, data=data, train=train) for m in (Scaffold(), FedAvg())]
    near(server(runs[0]).w, server(runs[1]).w)


def test_scaffold_controls_add_up_when_all_take_part() -> None:
    """c is the mean of the c_i, by lines 16 and 17."""
    run = played(Scaffold())
    total = sum((states(run)[c].c for c in range(1, len(AWKWARD))), start=states(run)[0].c)
    near(server(run).c, total / len(AWKWARD))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", [False, True])
def test_fednova_with_equal_steps_is_fedavg(momentum: float, norm: bool) -> None:
    """Equal |a_i| cancel; samples still weigh. With whole batches everybody takes as many steps, whatever its size."""
    train = Train(batch=100, lr=0.1, epochs=2, momentum=momentum)
    runs = [played(m, ratio=SOME, train=train, models=[network(norm=norm)]) for m in (FedNova(), FedAvg())]
    near(server(runs[0]).w, server(runs[1]).w)


def test_fednova_with_unequal_steps_is_not() -> None:
    runs = [played(m) for m in (FedNova(), FedAvg())]
    assert (server(runs[0]).w - server(runs[1]).w).sq_norm() > 1e-4


@pytest.mark.parametrize("hessian", ["first_order", "exact"])
def test_per_fedavg_without_a_personal_step_is_fedavg_on_half_batches(hessian: Any) -> None:
    """alpha = 0 leaves w <- w - beta grad f(w; second half); where samples are all alike, halves are as good as all.
    Its epoch is two passes."""
    runs = [
        played(m, data=monotonous(), train=Train(batch=b, epochs=e, lr=0.1))
        for m, b, e in ((PerFedAvg(alpha=0.0, hessian=hessian), 2, 1), (FedAvg(), 4, 2))
    ]
    near(server(runs[0]).w, server(runs[1]).w)


def test_per_fedavg_forms_meet_where_the_personal_step_vanishes() -> None:
    def apart(alpha: float) -> float:
        runs = [played(PerFedAvg(alpha=alpha, hessian=h)) for h in ("first_order", "exact")]
        return (server(runs[0]).w - server(runs[1]).w).sq_norm().item()

    assert apart(0.05) > 50 * apart(0.005) > 0  # squares: they go with alpha


def test_fedmeta_without_an_inner_step_is_one_step_of_fedavg() -> None:
    """inner_lr near 0: the mean gradient of the query sets; with sets all alike that is one whole-batch step each."""
    method = FedMeta(inner_lr=1e-9, meta_lr=0.1)
    runs = [played(m, data=monotonous((6, 6, 6)), train=Train(batch=100, lr=0.1)) for m in (method, FedAvg())]
    near(server(runs[0]).w, server(runs[1]).w)


def test_fedmeta_algorithms_begin_alike() -> None:
    """Meta-SGD's rates are all inner_lr in round 1, so that its first step of theta is MAML's; FOMAML's is another."""
    w = {a: server(played(FedMeta(algorithm=a), rounds=1)).w for a in ("maml", "fomaml", "meta_sgd")}
    near(w["maml"], w["meta_sgd"])
    assert (w["maml"] - w["fomaml"]).sq_norm() > 1e-8
