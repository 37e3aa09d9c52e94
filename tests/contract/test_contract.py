"""Every method keeps the contract, and `check_method` catches those that do not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from broken import BREAKAGES, DeadOption

import headwise as hw
from headwise.app import registry
from headwise.contract.formulas import evaluate
from headwise.engine.executors import crew
from headwise.errors import ConfigError
from headwise.settings.names import list_names
from headwise.testing import CHECKS, check_method, run_check

# a user's own method, in its own file
MINE = '''"""MyMethod — nobody yet, an idea of today.

A body that everybody shares, mixed with a head of one's own.
"""

from dataclasses import dataclass
from typing import ClassVar

from headwise.authoring import Averaging, Central, Local, Params, Predictor, Record, Shared, Update
from headwise.settings.fields import Unit


class Head(Record):
    h: Params


@dataclass(frozen=True)
class MyMethod(Averaging[Head]):
    """A shared body under a personal head that changes slowly."""

    family: ClassVar[str] = "shared body"
    travels: ClassVar[str] = "body"
    stays: ClassVar[str] = "head"
    traffic_down: ClassVar[str] = "F"

    hold: Unit = 0.5
    """how much of the old head is kept"""

    def shared(self, central: Central) -> Params:
        return central.init().params("body")

    def client_init(self, local: Local) -> Head:
        return Head(local.init().state("head"))

    def local_update(self, me: Head, down: Shared, local: Local) -> Update[Shared, Head]:
        m = local.model(down.w | me.h)
        local.sgd(m)
        h = self.hold * me.h + (1 - self.hold) * m.state("head")
        return Update(Shared(m.params("body")), Head(h), m)

    def personalize(self, me: Head, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.h)
'''

# its client half reads what its server half keeps on the class: in one process, that goes unnoticed
FORGETFUL = """from headwise.authoring import Shared, Update
from headwise.methods.fedavg import FedAvg


class Forgetful(FedAvg):
    seen = []

    def server_init(self, central):
        self.seen.clear()
        return FedAvg.server_init(self, central)

    def aggregate(self, server, replies, central):
        self.seen.append(central.t)
        return FedAvg.aggregate(self, server, replies, central)

    def local_update(self, me, down, local):
        m = local.model(down.w)
        local.sgd(m, lr=local.lr / (1 + len(self.seen)))
        return Update(Shared(m.params()), me, m)
"""


@pytest.fixture(autouse=True, scope="module")
def one_import_of_torch() -> Iterator[None]:
    """Fork the workers of all pools from one clean process: the same isolation, without waiting for torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headwise.testing", "pytest", "torch._dynamo"])
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # one without torch, from an earlier test
    forkserver.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "multiprocessing", SimpleNamespace(get_context=lambda name: context))
        yield


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", list_names("method"))
def test_method_keeps_the_contract(name: str, check: str) -> None:
    run_check(check, registry.find("method", name))


@pytest.mark.parametrize("method", BREAKAGES, ids=lambda m: m.__name__)
def test_breakage_is_caught_by_its_check(method: Any) -> None:
    check, said = BREAKAGES[method]
    with pytest.raises(AssertionError, match=f"^{method.__name__} fails the check '{check}': .*{said}"):
        run_check(check, method)


def test_every_check_bites_somewhere() -> None:
    assert {*(check for check, _ in BREAKAGES.values()), "processes and threads, same bits"} == set(CHECKS)


def test_own_method_runs_from_its_file_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "mymethod.py"
    path.write_text(MINE)
    experiment = hw.Experiment(
        method=str(path), data="synthetic:samples=120:sites=3", partition="natural", model="mlp:8", rounds=2
    )
    run = hw.run(experiment, tmp_path / "run", data_dir=tmp_path)
    assert run.complete and len(run.rounds) == 2 and 0 <= run.accuracy() <= 1
    check_method(registry.find("method", str(path)))


def test_processes_that_do_not_share_a_memory_are_caught(tmp_path: Path) -> None:
    path = tmp_path / "forgetful.py"
    path.write_text(FORGETFUL)
    method = registry.find("method", str(path))
    run_check("same seed, same bits", method)
    run_check("any order of answers, same bits", method)
    with pytest.raises(
        AssertionError, match="Forgetful fails the check 'processes and threads, same bits': pool of 1 gives another"
    ):
        run_check("processes and threads, same bits", method)


def test_file_without_a_title_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "forgetful.py"
    path.write_text(FORGETFUL)
    with pytest.raises(AssertionError, match=r"Forgetful fails the check 'documentation': .*title"):
        run_check("documentation", registry.find("method", str(path)))


def test_check_method_names_all_failures_documentation_last_and_takes_instances() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(DeadOption(mu=3.0))
    found = [line.split("'")[1] for line in str(caught.value).splitlines()]
    assert found == ["every hyperparameter counts", "processes and threads, same bits"]
    assert [*CHECKS][-1] == "documentation"
    with pytest.raises(ConfigError, match=r"method\.mu is -1\.0, but must be from 0"):
        DeadOption(mu=-1.0)


def test_method_without_a_file_of_its_own_is_told_so() -> None:
    with pytest.raises(
        AssertionError, match=r"DeadOption fails the check 'processes and threads, same bits': .*its own file"
    ):
        run_check("processes and threads, same bits", DeadOption)


def test_checks_leave_the_world_as_it_was() -> None:
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    run_check("same seed, same bits", registry.find("method", "fedavg"))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0", 0),
        ("P", 59),
        ("c*(K + 1)", 12),
        ("2*P + K**2", 143),
        ("L/2 - 1", 11),
        ("(P + 1)//2", 30),
        ("P if how == 'all' else c", 2),
        ("P if how != 'all' else c", 59),
        ("P * on", 59),
    ],
)
def test_formulas(formula: str, value: float) -> None:
    assert evaluate(formula, {"P": 59, "K": 5, "c": 2, "L": 24, "how": "some", "on": True}) == value


@pytest.mark.parametrize(
    "formula",
    ["2P", "P.real", "abs(P)", "__import__('os')", "[P for P in K]", "lambda: P", "Q", "'P'", "P < K < 3", ""],
)
def test_formulas_compute_nothing_else(formula: str) -> None:
    with pytest.raises(AssertionError, match="formula"):
        evaluate(formula, {"P": 1, "K": 1})
