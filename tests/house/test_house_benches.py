"""Who may ask for what: neither bench is the other, and under privacy a primitive is refused until somebody decides."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, get_args

import pytest
from rooms import FILES, HOME

from headwise.contract.benches import Bench, Central, Local
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.mechanism import Mechanism
from headwise.engine.server_bench import ServerBench
from headwise.engine.workbench import Workbench
from headwise.methods.fedavg import FedAvg
from headwise.params import Params
from headwise.privacy import dp_sgd
from headwise.privacy.mechanisms import MECHANISMS
from headwise.settings.fields import field_types
from headwise.settings.options import Privacy
from headwise.testing.toy import toy_plan


def names(*interfaces: type[Any]) -> set[str]:
    """What these interfaces offer to a method."""
    return {n for kind in interfaces for n in {**vars(kind), **kind.__annotations__} if not n.startswith("_")}


def test_somebody_has_decided_about_every_primitive() -> None:
    """A new one on `Local` is refused under DP-SGD, and this test fails until it stands in one of the two lists."""
    assert dp_sgd.ALLOWS.isdisjoint(dp_sgd.REFUSES)
    assert dp_sgd.ALLOWS | dp_sgd.REFUSES.keys() == names(Bench, Local)


def test_a_client_cannot_ask_what_only_the_server_may() -> None:
    plan = toy_plan(FedAvg())
    client = ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0)
    server = ServerBench(plan, 1)
    assert names(Central) == {"drawn", "labels", "mean", "size"}
    assert names(Bench, Local) <= {*dir(client)}
    assert names(Bench, Central) <= {*dir(server)}
    both = {"labels"}  # a client's own targets; of the server, the classes of a client that told it
    assert names(Central) & {*dir(client)} == both
    assert names(Local) & {*dir(server)} == both
    assert len(client.labels) == client.n
    assert server.labels(0) == tuple(client.labels.unique().tolist())


def test_neither_bench_is_the_other() -> None:
    """They share only what `Bench` offers to both halves."""
    assert ClientBench.__bases__ == ServerBench.__bases__ == (Workbench,)
    plan = toy_plan(FedAvg())
    shared = {n for n in dir(Workbench(plan, 1, plan.common, Params())) if not n.startswith("_")}
    assert shared == names(Bench) - {"rng"}


@pytest.mark.parametrize("kind", MECHANISMS, ids=lambda k: k.__name__)
def test_every_mechanism_says_what_it_is(kind: type[Mechanism]) -> None:
    assert kind.protects
    assert kind.__doc__
    assert kind.relation
    assert kind.messages


def test_every_level_has_a_mechanism() -> None:
    assert {kind.unit for kind in MECHANISMS} == set(get_args(field_types(Privacy)["level"]))


def test_every_mechanism_of_the_room_is_in_its_table() -> None:
    """One that is missing there could not be selected."""
    modules = [importlib.import_module(f"headwise.privacy.{p.stem}") for p in FILES if p.parent == HOME / "privacy"]
    defined = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    assert {kind for kind in defined if issubclass(kind, Mechanism) and not inspect.isabstract(kind)} == set(MECHANISMS)
