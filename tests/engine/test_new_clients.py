"""Clients that `evaluate.new_clients` keeps out of training, and those that `without` leaves out altogether."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.app import registry
from headwise.data.federated import Clients
from headwise.engine.events import Event, NewClients
from headwise.engine.joining import EPOCHS, join
from headwise.engine.plan import Plan
from headwise.engine.sampling import participants, sample
from headwise.errors import ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.methods.standalone import Standalone
from headwise.models.base import Task
from headwise.settings.choices import Choice
from headwise.settings.experiment import Experiment, experiment_from
from headwise.settings.names import list_names
from headwise.settings.options import Evaluate, Sampling
from headwise.sites.facts import resolve_for_sites
from headwise.testing.toy import EASY, Recorder, federation, play, toy_plan

NEW = 0.25


def held_out(method: Any, spoilt: int | None = None, **options: Any) -> Plan:
    plan = toy_plan(method, data=federation(EASY, spoilt=spoilt), **options)
    return plan.with_settings(evaluate=dataclasses.replace(plan.experiment.evaluate, new_clients=NEW))


def played(plan: Plan) -> tuple[Recorder, dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def watch(event: Event) -> None:
        if isinstance(event, NewClients):
            found.append(event.figures)

    recorder = play(plan, watching=watch)
    assert len(found) == 1
    return recorder, found[0]


def test_newcomers_never_train_and_are_not_among_the_measured() -> None:
    plan = held_out(FedAvg())
    recorder, found = played(plan)
    (new,) = plan.newcomers
    assert [*plan.clients] == [c for c in range(4) if c != new]
    assert found["clients"] == [new]
    for ended in recorder.ended:
        assert new not in ended.row.get("clients", [])
        assert new not in ended.states
        assert new not in [line["client"] for line in ended.clients]
    assert recorder.ended[-1].row.get("pre", {}).get("clients") == 3
    assert [(row["model"], row["epochs"]) for row in found["rows"][: len(EPOCHS)]] == [("joined", e) for e in EPOCHS]
    assert [row["passes"] for row in found["rows"]] == [0, 1, 5, 1, 5, plan.experiment.rounds]


def test_what_newcomers_have_changes_nothing_for_the_others() -> None:
    (new,) = held_out(FedAvg()).newcomers
    one, other = played(held_out(FedAvg())), played(held_out(FedAvg(), spoilt=new))
    assert one[0].trace() == other[0].trace()
    assert one[1] != other[1]


def test_every_method_holds_out_the_same_clients_and_other_seeds_others() -> None:
    plans = [held_out(m) for m in (FedAvg(), Standalone())]
    assert plans[0].newcomers == plans[1].newcomers
    seeds = {plans[0].with_settings(seed=s).newcomers for s in range(20)}
    assert len(seeds) > 2


def test_standalone_is_measured_as_the_method_would_be() -> None:
    """A client that trains alone ends with the same model, whether it is held out or takes part in every round."""
    plan = held_out(Standalone())
    (new,) = plan.newcomers
    everyone = play(plan.with_settings(evaluate=Evaluate(plan.experiment.rounds)))
    (line,) = [line for line in everyone.ended[-1].clients if line["client"] == new]
    rows = {(row["model"], row["epochs"]): row["each"] for row in played(plan)[1]["rows"]}
    assert rows["standalone", plan.experiment.rounds] == [line.get("post", {}).get("test")]
    assert rows["alone", 5] == rows["joined", 5]


def ten(experiment: Experiment, absent: frozenset[int] = frozenset()) -> Plan:
    """A plan of ten clients without samples."""
    nothing = torch.empty(0, dtype=torch.int64)
    data = Clients(Task((1,), 2), nothing.float(), nothing, np.zeros((10, 3), np.int64), absent=absent)
    return Plan(experiment, Standalone(), (), data)


def test_a_share_of_the_rest_takes_part() -> None:
    experiment = Experiment(sampling=Sampling(0.5), evaluate=Evaluate(new_clients=0.2), seed=3)
    drawn = [participants(ten(experiment), t) for t in range(1, 40)]
    assert {len(clients) for clients in drawn} == {4}
    assert len({c for clients in drawn for c in clients}) == 8


def test_the_absent_change_nothing_about_whom_the_rounds_draw() -> None:
    experiment = Experiment(sampling=Sampling(0.4))
    for t in range(1, 20):
        drawn = sample(experiment.sampling, 10, 0, t)
        assert participants(ten(experiment, frozenset({7})), t) == [c for c in drawn if c != 7]


@pytest.mark.parametrize("name", list_names("method"))
def test_every_method_has_a_model_for_a_client_that_was_not_there(name: str) -> None:
    """Finite scores, the same again; adaptation lowers the loss on its training samples."""
    plan = held_out(registry.make("method", Choice(name)), rounds=1)
    (new,) = plan.newcomers
    server, data = play(plan).ended[-1].progress.server, plan.data.client(new)
    losses: dict[int, float] = {}
    for epochs in EPOCHS:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            once = _scores(plan, server, new, epochs)
            assert epochs > 1 or torch.equal(once, _scores(plan, server, new, epochs))
        assert once.isfinite().all()
        losses[epochs] = float(cross_entropy(once, data.train.y))
    assert losses[5] < losses[0]


def _scores(plan: Plan, server: Any, new: int, epochs: int) -> torch.Tensor:
    with torch.enable_grad():
        model = join(plan, server, new, plan.experiment.rounds, epochs).model
    return model(plan.data.client(new).train.x)


@pytest.mark.parametrize(
    "changes", [{"without": ["1"]}, {"evaluate": {"new_clients": 0.2}}], ids=lambda c: next(iter(c))
)
def test_a_deployment_leaves_nobody_out(changes: dict[str, Any]) -> None:
    """Its server has no samples with which somebody could join."""
    asked = experiment_from({"data": "heart-disease", "partition": "natural", "clients": 4, **changes})
    with pytest.raises(ConfigError, match="is set, but only simulations know all clients"):
        resolve_for_sites(asked)
