"""Limits in which one method must become another, or a number another; bit for bit where the steps are the same."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from plain import server, toy_plan

from headwise.data.federated import FederatedData
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedavg_ft import FedAvgFT
from headwise.methods.fedper import FedPer
from headwise.methods.fedprox import FedProx
from headwise.methods.fedrep import FedRep
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.methods.standalone import Standalone
from headwise.testing.toy import ALL_MOMENTS, AWKWARD, SOME, Recorder, federation, network, play


def data_of(*clients: tuple[int, int, tuple[int, ...]]) -> FederatedData:
    return federation(clients)


def twins(count: int) -> FederatedData:
    """Clients with the very same samples."""
    one = data_of((12, 0, (0, 1, 2)))
    return FederatedData(one.dataset, one.parts * count)


def full_batch(plan: Plan) -> Plan:
    """So that the clients' different orders of samples do not matter."""
    return plan.with_settings(train=dataclasses.replace(plan.experiment.train, batch=1000))


def state(recorder: Recorder, client: int) -> Any:
    return recorder.ended[-1].states[client].me


def assert_near(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=1e-6)


def test_fedprox_without_pull_is_fedavg() -> None:
    assert play(toy_plan(FedProx(mu=0.0), ratio=SOME)).trace() == play(toy_plan(FedAvg(), ratio=SOME)).trace()


def test_fedprox_with_a_strong_pull_stays_nearer_to_what_it_was_sent() -> None:
    """One round: ||w_1 - w_0|| falls with mu."""
    start = network().params()
    moved = [(server(play(toy_plan(FedProx(mu=mu), rounds=1))).w - start).sq_norm() for mu in (0.0, 1.0, 5.0)]
    assert moved[0] > moved[1] > moved[2] > 0


def test_fedavg_without_fine_tuning_is_fedavg() -> None:
    plain, tuned = (play(toy_plan(m, ratio=SOME)).trace() for m in (FedAvg(), FedAvgFT(finetune_epochs=0)))
    assert plain == tuned


def test_fine_tuning_never_changes_what_is_trained() -> None:
    plain, tuned = (play(toy_plan(m, ratio=SOME)).trace() for m in (FedAvg(), FedAvgFT(finetune_epochs=2)))
    assert plain.server == tuned.server
    assert plain.rows != tuned.rows


def test_fedrep_without_head_epochs_never_moves_a_head() -> None:
    """tau = 0 leaves every h_i at its common start, while the body learns under it."""
    run = play(toy_plan(FedRep(head_epochs=0)))
    start = network().state("head")
    for c in range(len(AWKWARD)):
        assert all(torch.equal(t, start[k]) for k, t in state(run, c).h.items())
    assert not torch.equal(server(run).w["body.0.weight"], network().params()["body.0.weight"])


def test_traffic_of_body_and_head_adds_up_to_the_whole_model() -> None:
    def traffic(method: Any) -> list[int]:
        rows = [json.loads(r) for r in play(toy_plan(method, ratio=SOME)).trace().rows]
        return [row["bytes_up"] + row["bytes_down"] for row in rows]

    bodies, heads, wholes = traffic(FedPer()), traffic(LGFedAvg()), traffic(FedAvg())
    assert [b + h for b, h in zip(bodies, heads, strict=True)] == wholes
    assert traffic(FedRep()) == bodies
    assert min(wholes) > 0


@pytest.mark.parametrize("norm", [False, True])
def test_one_client_with_everything_makes_fedavg_standalone(norm: bool) -> None:
    """The mean of one is itself: same start, same orders of samples, same bits."""
    data = data_of((30, 0, (0, 1, 2, 3)))
    models = [network(norm=norm)]
    together, alone = (play(toy_plan(m, data=data, models=models, every=1)) for m in (FedAvg(), Standalone()))
    own = state(alone, 0).w
    assert all(torch.equal(t, own[k]) for k, t in server(together).w.items())
    scores = [[{m: row[m] for m in ("pre", "post")} for row in r.trace().parse()] for r in (together, alone)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("method", [FedPer(), LGFedAvg()])
def test_one_client_with_everything_makes_every_split_standalone(method: Any) -> None:
    """What travels and what stays together are the one model."""
    data = data_of((30, 0, (0, 1, 2, 3)))
    split, alone = (play(toy_plan(m, data=data)) for m in (method, Standalone()))
    stays = state(split, 0)
    own, whole = getattr(stays, "h", None) or stays.phi, state(alone, 0).w
    joined = server(split).w | own
    assert joined.keys() == whole.keys()
    assert all(torch.equal(t, whole[k]) for k, t in joined.items())


def test_clients_with_the_same_samples_make_all_averages_standalone() -> None:
    """With full batches all clients take the same steps, so that a mean, of whatever part, changes nothing."""
    plans = {m: full_batch(toy_plan(m(), data=twins(3))) for m in (FedAvg, FedPer, LGFedAvg, Standalone)}
    runs = {m: play(plan) for m, plan in plans.items()}
    wanted = dict(state(runs[Standalone], 0).w)
    assert_near(dict(server(runs[FedAvg]).w), wanted)
    for c in range(3):
        assert_near(dict(server(runs[FedPer]).w | state(runs[FedPer], c).h), wanted)
        assert_near(dict(server(runs[LGFedAvg]).w | state(runs[LGFedAvg], c).phi), wanted)


def test_averages_agree_when_all_tests_have_equal_size() -> None:
    """Sum of correct / sum of samples = plain mean of accuracies."""
    data = data_of((20, 0, (0, 1)), (9, 0, (1, 2)), (14, 0, (2, 3)))
    equal = toy_plan(FedAvg(), data=data, moments=ALL_MOMENTS, every=1)
    for row in play(equal).trace().parse():
        for moment in ("pre", "post", "stale", "global"):
            assert row[moment]["accuracy"] == pytest.approx(row[moment]["client_mean"], abs=1e-12)


def test_averages_differ_when_they_have_not() -> None:
    data = data_of((20, 0, (0, 1)), (9, 0, (1, 2)), (14, 0, (2, 3)))
    short = dataclasses.replace(data.parts[0], test=data.parts[0].test[:3])
    rows = play(toy_plan(FedAvg(), every=1, data=FederatedData(data.dataset, [short, *data.parts[1:]]))).trace().parse()
    assert any(row["pre"]["accuracy"] != pytest.approx(row["pre"]["client_mean"]) for row in rows)


@pytest.mark.parametrize("method", [FedAvg(), FedProx(), FedAvgFT(), FedPer(), FedRep(), LGFedAvg(), Standalone()])
def test_buffer_policies_are_the_same_without_batchnorm(method: Any) -> None:
    traces = [play(toy_plan(method, ratio=SOME, rounds=2, buffers=b)).trace() for b in ("params", "all", "local")]
    assert traces[0] == traces[1] == traces[2]


def test_buffer_policies_differ_with_batchnorm() -> None:
    traces = [
        play(toy_plan(FedAvg(), models=[network(norm=True)], buffers=b)).trace() for b in ("params", "all", "local")
    ]
    assert traces[0] != traces[1] != traces[2] != traces[0]
    sent = [json.loads(t.rows[0])["bytes_up"] for t in traces]
    assert sent[1] > sent[0] > sent[2]


def test_everybody_drawn_every_round_is_the_ratio_of_one() -> None:
    assert play(toy_plan(FedAvg(), ratio=1.0)).trace() == play(toy_plan(FedAvg(), ratio=0.9999999999)).trace()


def test_no_decay_per_round_is_no_decay_per_participation() -> None:
    plan = toy_plan(FedAvg(), ratio=SOME)
    other = plan.with_settings(train=dataclasses.replace(plan.experiment.train, lr_decay_per="participation"))
    assert play(plan).trace() == play(other).trace()


def test_decay_per_round_is_decay_per_participation_when_all_take_part() -> None:
    plan = toy_plan(FedAvg())
    rates = [
        dataclasses.replace(plan.experiment.train, lr_decay=0.5, lr_decay_per=per) for per in ("round", "participation")
    ]
    one, other = (play(plan.with_settings(train=rate)).trace() for rate in rates)
    assert one == other != play(plan).trace()
