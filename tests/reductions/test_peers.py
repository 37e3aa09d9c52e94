"""What the methods that came from peers' libraries become at the ends of their options, over whole runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain import server, states, toy_plan

from headwise.engine.client.client_bench import ClientBench
from headwise.methods.cfl import CFL
from headwise.methods.fedap import FedAP
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedlc import FedLC
from headwise.methods.fedmtl import FedMTL
from headwise.methods.fedntd import FedNTD
from headwise.methods.fedrs import FedRS
from headwise.methods.fedsam import FedSAM
from headwise.methods.flute import FLUTE
from headwise.methods.mr_mtl import MRMTL
from headwise.methods.pfedsim import PFedSim
from headwise.methods.q_fedavg import QFedAvg
from headwise.methods.standalone import Standalone
from headwise.params import Params
from headwise.settings.options import Train
from headwise.testing.toy import SOME, Recorder, play

ONE_BATCH = Train(batch=100, lr=0.1)


def played(method: Any) -> Recorder:
    return play(toy_plan(method, ratio=SOME))


def near(a: Params, b: Params, atol: float = 1e-6) -> None:
    assert a.keys() == b.keys() and len(a)
    for k, t in a.items():
        torch.testing.assert_close(t, b[k], rtol=0, atol=atol)


@pytest.mark.parametrize(
    "method", [FedNTD(beta=0.0), FedLC(tau=0.0), FedRS(alpha=1.0), FedSAM(rho=0.0), PFedSim(warm_up=1.0)], ids=repr
)
def test_is_fedavg(method: Any) -> None:
    near(server(played(method)).w, server(played(FedAvg())).w)


@pytest.mark.parametrize("method", [QFedAvg(q=0.0), CFL(eps_mean=0.0)], ids=repr)
def test_is_fedavg_with_equal_weights(method: Any) -> None:
    """q-FedAvg's pass over the samples before training uses up an order, so all are in one batch."""
    ends = [server(play(toy_plan(m, ratio=SOME, train=ONE_BATCH))) for m in (method, FedAvg(weights="clients"))]
    near(ends[0].models[0] if isinstance(method, CFL) else ends[0].w, ends[1].w, atol=1e-5)


@pytest.mark.parametrize("method", [MRMTL(lam=0.0), FedMTL(lam=0.0)], ids=repr)
def test_is_local_training(method: Any) -> None:
    mine, alone = (states(played(m)) for m in (method, Standalone()))
    for c, me in mine.items():
        near(me.w, alone[c].w)


def test_fedap_with_only_its_own_model_is_fedbn_alone() -> None:
    """own = 1: nothing of the others after the first participation; before it, in round 1, all start alike."""
    mine, alone = (play(toy_plan(m)) for m in (FedAP(own=1.0), Standalone()))
    for c, w in server(mine).models.items():
        near(w, states(alone)[c].w)


def test_flute_without_regularizers_is_fedrep_that_trains_the_whole_model_last() -> None:
    """By the bench itself: epochs on the head, then on everything."""
    method = FLUTE(head_epochs=2, lam1=0.0, lam2=0.0, lam3=0.0, server_lr=0.0)
    plan = toy_plan(method, rounds=1)
    end = server(play(plan))
    for c, head in end.heads.items():
        local = ClientBench(plan, c, 1, purpose="fit", kept=Params(), trained=0)
        m = local.init()
        local.sgd(m, only=m.head, epochs=2)
        local.sgd(m)
        near(head, m.params("head"), atol=1e-5)
