"""Each process of a site and of a server is killed in turn, while sums are masked: nobody is left, no bit changes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from federations import experiment, relative_distance
from laboratory import Laboratory, laboratory, processes_of

import headwise as hw
from waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
DEPLOY = ("deploy", "exp.toml", "--server", "server", "--out", "run")
AT_SITES = {"site0": "headwise.sites.site.worker", "site1": "headwise.sites.transport.node"}
AT_SERVER = ("flwr-serverapp", "flower-superexec", "flower-superlink")


def rounds(lab: Laboratory) -> int:
    return len(hw.Run(lab.home / "run").rounds) if (lab.home / "run" / "manifest.json").exists() else 0


def another_round(lab: Laboratory, what: str) -> None:
    """Wait for a round to end; a run that failed is continued by the same command."""
    before = rounds(lab)

    def moved() -> bool:
        if rounds(lab) == before and lab.processes["deploy"].poll() is not None:
            lab.start("deploy", *DEPLOY)
        return rounds(lab) > before

    until(moved, f"a round ends {what}")


def kill_one(lab: Laboratory, name: str, word: str) -> None:
    (victim, *_) = until(lambda: processes_of(lab.home / name, word), f"{word} runs")
    os.kill(victim, signal.SIGKILL)


@pytest.mark.long
def test_whoever_is_killed_leaves_nobody_and_changes_no_bit(tmp_path: Path) -> None:
    asked = experiment(
        "fedavg", rounds=10, evaluate={"moments": ["post"]}, sampling={"ratio": 1.0}, secure={"sums": True}
    )
    with laboratory(tmp_path) as lab:
        lab.write(asked)
        lab.start("deploy", *DEPLOY)
        another_round(lab, "at all")
        for name, word in AT_SITES.items():
            kill_one(lab, name, word)
            another_round(lab, f"after {word} was killed")
        lab.kill("site2")
        lab.join("site2")
        another_round(lab, "after a site was killed")
        for word in AT_SERVER:
            kill_one(lab, "server", word)
            if word != "flwr-serverapp":
                until(lambda: lab.processes["server"].poll() is not None, "the server stops as a whole")
                lab.nobody_is_left("server")
                lab.start("server", "server", "start", "server", "--port", str(lab.port))
                until(lab.listens, "it listens again")
            until(lambda: lab.processes["deploy"].poll() is not None, "deploy says that the run failed")
            lab.start("deploy", *DEPLOY)
            another_round(lab, f"after {word} was killed")
        until(lambda: lab.processes["deploy"].poll() is not None, "the run ends")
        done = lab.do(*DEPLOY, "--json")
        assert json.loads(done.stdout)["ended"] == "finished"
        said = (tmp_path / "site0.log").read_text()
        assert "the worker was killed by signal 9: starting another one, which continues from the disk" in said
        assert "the node was killed by signal 9: starting it again" in (tmp_path / "site1.log").read_text()
    hw.run(experiment("fedavg", rounds=10, evaluate={"moments": ["post"]}, sampling={"ratio": 1.0}), tmp_path / "local")
    assert relative_distance(tmp_path / "run", tmp_path / "local") < 1e-6


@pytest.mark.long
def test_two_sites_with_one_client_are_both_named(tmp_path: Path) -> None:
    with laboratory(tmp_path) as lab:
        toml = tmp_path / "site1" / "site.toml"
        toml.write_text(toml.read_text().replace("id = 1", "id = 0").replace("only=1", "only=0"))
        done = lab.deploy(experiment("fedavg", rounds=1), "run", fails=True)
        assert "is claimed by" in done.stderr
        assert "site0" in done.stderr
        assert "site1" in done.stderr
        logs = "".join((tmp_path / f"{name}.log").read_text() for name in ("site0", "site1"))
        assert "the server does not use this site: it claims client 0, which site" in logs
        assert not (tmp_path / "run").exists()
