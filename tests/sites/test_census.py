"""A question that every client answers before the first round: asked once, wherever the clients are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import use_local_nodes

import headwise as hw
from headwise.app import registry
from headwise.app.prepare import prepare as prepare_run
from headwise.engine.driver import drive
from headwise.engine.executors.local import Serial
from headwise.errors import ClientError, ConfigError
from headwise.settings.options import Faults
from headwise.testing.toy import play, toy_plan
from same_runs import rows

MINE = '''"""Counted — FedAvg whose server first learns the mean of all features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headwise.authoring import Central, Local, Method, Params, Predictor, Record, Reply, Shared, Update
from headwise.records import Nothing


class Known(Record):
    w: Params
    centre: Tensor
    n: int


class Told(Record):
    total: Tensor
    n: int


@dataclass(frozen=True)
class Counted(Method[Known, Nothing, Shared, Shared]):
    """FedAvg with a census."""

    family: ClassVar[str] = "test"
    census: ClassVar[type[Record]] = Told

    spoilt: float = 0.0

    def server_init(self, central: Central) -> Known:
        return Known(central.init().params(), torch.zeros(()), 0)

    def answer_census(self, local: Local) -> Told:
        x = torch.cat([x for x, _ in local.batches(1)])
        return Told(x.double().sum() / (0.0 if local.client < self.spoilt else 1.0), local.n)

    def use_census(self, server: Known, replies: Sequence[Reply[Told]], central: Central) -> Known:
        n = sum(r.up.n for r in replies)
        return Known(server.w, sum(r.up.total for r in replies) / n, n)

    def broadcast(self, server: Known, client: int, central: Central) -> Shared:
        return Shared(server.w)

    def aggregate(self, server: Known, replies: Sequence[Reply[Shared]], central: Central) -> Known:
        return Known(central.mean([r.up.w for r in replies], [r.n for r in replies], server.w), server.centre, server.n)

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return local.model(down.w)
'''


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    (tmp_path / "counted.py").write_text(MINE)
    return tmp_path / "counted.py"


def method(path: Path, **options: Any) -> Any:
    return registry.find("method", str(path))(**options)


def test_the_server_learns_what_all_clients_say(counted: Path) -> None:
    plan = toy_plan(method(counted), ratio=0.2)
    ended = play(plan).ended
    server: Any = ended[-1].progress.server
    x = torch.cat([plan.data.client(c).train.x for c in range(5)]).double()
    assert server.n == len(x)
    torch.testing.assert_close(server.centre, x.sum() / len(x))
    assert [len(e.row["clients"]) for e in ended] == [1, 1, 1], "all are asked, even where few train"
    assert [e.row.get("bytes_census") for e in ended] == [5 * 12, None, None]


def test_who_does_not_take_part_is_not_asked(counted: Path) -> None:
    plan = toy_plan(method(counted))
    plan = replace(plan, data=replace(plan.data, absent=frozenset({1})))
    plan = plan.with_settings(evaluate=replace(plan.experiment.evaluate, new_clients=0.2))
    server: Any = play(plan).ended[-1].progress.server
    assert plan.newcomers
    assert server.n == sum(plan.data.sizes(c)[0] for c in plan.clients)


def test_a_run_that_goes_on_does_not_ask_again(counted: Path) -> None:
    plan, asked = toy_plan(method(counted)), list[str]()

    class Listening(Serial):
        def run(self, jobs: Any) -> Any:
            todo = list(jobs)
            asked.extend(job.kind for job in todo)
            return Serial.run(self, todo)

    first = play(plan, rounds=1).ended[0].progress
    drive(plan, Listening(plan), start=first)
    assert asked
    assert "census" not in asked
    drive(plan, Listening(plan))
    assert asked.count("census") == 5


@pytest.mark.parametrize("engine", [{"workers": 2}, {"workers": "threads:2"}, {"kind": "flower-sim"}], ids=str)
def test_wherever_clients_are(
    engine: dict[str, Any], counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_local_nodes(monkeypatch)
    usual: dict[str, Any] = {
        "method": str(counted),
        "data": "synthetic:80:4:8",
        "model": "mlp:8",
        "clients": 4,
        "rounds": 2,
    }
    one = hw.run(hw.Experiment(**usual, **{"engine": {"workers": 1}}), tmp_path / "one")
    other = hw.run(hw.Experiment(**usual, **{"engine": engine}), tmp_path / "other")
    assert rows(one) == rows(other)
    assert rows(one)[0]["bytes_census"] == 4 * 12
    line = (tmp_path / "one" / "rounds.jsonl").read_text().splitlines()[1]  # after round 0
    assert json.loads(line)["bytes_census"] == 48


def test_an_answer_that_is_not_finite_counts_as_a_failure(counted: Path) -> None:
    with pytest.raises(ClientError, match="client 0 sent values in total that are not finite in the census"):
        play(toy_plan(method(counted, spoilt=1.0)))
    skipping = toy_plan(method(counted, spoilt=1.0)).with_settings(faults=Faults("skip"))
    server: Any = play(skipping).ended[-1].progress.server
    assert server.n == 9 + 6 + 1 + 8  # without client 0
    with pytest.raises(ClientError, match="round 0 has 0 replies"):
        play(toy_plan(method(counted, spoilt=5.0)).with_settings(faults=Faults("skip")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"privacy": {"clip": 1.0}},
            "privacy.clip is 1, but clients of .*counted.py answer a census, which no mechanism",
        ),
        ({"privacy": {"clip": 1.0, "level": "example"}}, "answer a census, which no mechanism protects"),
    ],
)
def test_a_census_is_refused_under_privacy(changes: dict[str, Any], said: str, counted: Path) -> None:
    usual: dict[str, Any] = {"method": str(counted), "data": "synthetic:80:4:8", "clients": 4}
    with pytest.raises(ConfigError, match=said):
        prepare_run(hw.Experiment(**usual, **changes), Path())


def test_a_census_is_not_masked(counted: Path) -> None:
    usual: dict[str, Any] = {"method": str(counted), "data": "synthetic:80:4:8", "clients": 4}
    counted.write_text(MINE.replace("    spoilt:", '    sums: ClassVar[str] = "samples"\n    spoilt:'))
    asked = hw.Experiment(**usual, **{"secure": {"sums": True}, "engine": {"kind": "flower-sim"}})
    with pytest.raises(ConfigError, match=r"secure.sums is true, but clients of .*counted.py answer a census"):
        prepare_run(asked, Path())
