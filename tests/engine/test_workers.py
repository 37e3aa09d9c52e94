"""Who works where: the setting, what `auto` chooses, groups of equal work, and where time goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from bench_of_tests import federation, prepare
from torch import nn

import headwise as hw
from headwise.engine import estimate
from headwise.engine.client.jobs import Job
from headwise.engine.executors.base import balance
from headwise.engine.executors.local import Threads
from headwise.engine.host import device_of
from headwise.engine.kernels.native.chain import native
from headwise.errors import ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.models.split import SplitModel
from headwise.records import Nothing
from headwise.runs.profiles import SECTIONS, format_profile, profile
from headwise.settings.options import Train, Workers


@pytest.mark.parametrize("value", ["auto", 1, 256, "threads:2"])
def test_workers_are_read_and_written_alike(value: Any) -> None:
    assert hw.Experiment(engine={"workers": value}).to_plain()["engine"]["workers"] == value
    assert Workers.parse(str(value), "engine.workers").to_plain() == value


@pytest.mark.parametrize("value", [0, -1, 257, True, 1.5, "two", "threads", "threads:0", "threads:", "", None, [2]])
def test_other_workers_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine.workers is .*, but must be auto, a number from 1 to 256"):
        hw.Experiment(engine={"workers": value})


def plan(*sizes: int) -> Any:
    return prepare(FedAvg(), federation([([k % 3 for k in range(n)], [], [0]) for n in sizes]))


def test_groups_have_equal_work_and_the_heaviest_is_first() -> None:
    sizes = (90, 10, 20, 30, 40, 50, 5, 5)
    jobs = [Job("fit", c, 1, Nothing()) for c in range(len(sizes))]
    groups = balance(jobs, plan(*sizes), 1)
    work = [sum(sizes[job.client] for job in group) for group in groups]
    assert sorted(job.client for group in groups for job in group) == list(range(len(sizes)))
    assert len(groups) == 4
    assert groups[0][0].client == 0
    assert work == sorted(work, reverse=True)
    assert work[0] == 90
    assert max(work[1:]) - min(work[1:]) <= 10
    assert balance([], plan(1), 2) == []


def test_every_job_is_a_group_where_there_are_few() -> None:
    jobs = [Job("pre", c, 1, Nothing()) for c in range(3)]
    assert [len(group) for group in balance(jobs, plan(3, 3, 3), 2)] == [1, 1, 1]


def test_auto_starts_processes_only_for_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "seconds_per_step", lambda plan: 1.0)
    made = plan(9, 9, 9).with_settings(train=Train(batch=3), rounds=10)
    assert estimate.training_seconds(made) == pytest.approx(10 * 3 * 3)
    assert estimate.is_long(made)
    assert not estimate.is_long(made.with_settings(rounds=2))


def test_the_probe_changes_nothing() -> None:
    made = plan(9)
    before = {k: t.clone() for k, t in made.models[0].state_dict().items()}
    state = torch.random.get_rng_state()
    assert estimate.seconds_per_step(made) > 0
    assert all(torch.equal(t, before[k]) for k, t in made.models[0].state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_threads_refuse_networks_that_draw() -> None:
    net = SplitModel(nn.Sequential(nn.Linear(4, 3), nn.Dropout()), nn.Linear(3, 3))
    made = dataclasses.replace(plan(3), models=(net,))
    with pytest.raises(ConfigError, match=r"engine.workers is 'threads:2', but .* draws random numbers"):
        Threads(made, 2)


def test_workers_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(k, "cuda") for k in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of(1, "cuda:0") == "cuda:0"
    assert device_of(1, "cpu") == "cpu"


def test_a_profile_adds_up_and_names_the_bottleneck() -> None:
    seconds = {"round": 2.0, "train": 1.0, "server": 0.5, "stored": 0.25, "workers": {"training": 3.0, "idle": 0.25}}
    lines = profile([{"seconds": seconds}, {"seconds": seconds}])
    assert [(line.name, line.seconds) for line in lines] == [
        ("forward and backward", 6.0), ("broadcast and aggregation", 1.0), ("checkpoint and lines", 0.5), ("idle", 0.5)
    ]  # fmt: skip
    assert sum(line.share for line in lines) == pytest.approx(1)
    assert "next bottleneck: forward and backward." in format_profile(lines)
    assert "no profile" in format_profile(profile([{"seconds": {"round": 1.0}}]))


def test_a_run_tells_where_its_time_went(tmp_path: Any) -> None:
    run = hw.run(hw.Experiment(method="fedrep", model="mlp", rounds=2, clients=4), tmp_path / "run")
    training = f"training.{'native' if native().library else 'plain'}"
    for row in run.rounds:
        seconds = row["seconds"]
        assert (
            {"data", training, "features", "method", "evaluation", "idle"}
            <= set(seconds["workers"])
            <= {*SECTIONS, training}
        )
        assert sum(seconds["workers"].values()) == pytest.approx(seconds["train"] + seconds["evaluate"], rel=0.05)
        assert seconds["round"] >= seconds["train"] + seconds["evaluate"] + seconds["server"]
        assert 2**20 < row["memory"] < 2**40
    assert run.rounds[0]["seconds"]["stored"] == 0.0 < run.rounds[1]["seconds"]["stored"]
