"""Clients at real SuperNodes on loopback, with TLS and keys: the same bits, and strangers are refused."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from federations import TWO, bits, bits_at_sites, experiment, relative_distance, write_site
from laboratory import SITES, Laboratory, laboratory, processes_of

import headwise as hw
from headwise.cli import main
from headwise.settings.names import list_names
from headwise.sites.keys import write_certificates, write_node_key
from headwise.sites.transport.superlink import flower_environment, run_flwr
from waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
POST = {"moments": ["post"]}
STAGES = ("keys", "shares", "fit", "help")


def same_bits(lab: Laboratory, method: str, **changes: Any) -> Path:
    """Run it at the sites and locally; return the folder of the first."""
    asked = experiment(method, **{"rounds": 1, "evaluate": POST, "sampling": {"ratio": 1.0}, **changes})
    there, here = (lab.home / f"{where}-{len(list(lab.home.glob('there-*')))}" for where in ("there", "here"))
    done = lab.deploy(asked, there.name)
    assert json.loads(done.stdout)["ended"] == "finished"
    hw.run(asked, here)
    assert bits_at_sites(there, lab.home) == bits(here), method
    return there


@pytest.mark.slow
def test_a_federation_gives_the_same_bits_and_refuses_who_must_be_refused(tmp_path: Path) -> None:
    """One federation for all checks: starting one takes longer than they do."""
    with laboratory(tmp_path) as lab:
        strangers_are_refused(lab)
        same_bits(lab, TWO[0])
        lab.kill("site1")
        lab.join("site1")
        same_bits(lab, TWO[1])
        foreign_code_is_refused(lab)


def strangers_are_refused(lab: Laboratory) -> None:
    """A site with an unregistered key, and one with another server's certificate."""
    (lab.home / "other").mkdir()
    write_certificates(lab.home / "other", ["127.0.0.1"])
    for name, ca in (("stranger", "server/ca.crt"), ("deceived", "other/ca.crt")):
        write_site(lab.home / name, [0])
        write_node_key(lab.home / name / "site.key")
        lab.join(name, ca)
    log = lab.home / "stranger.log"
    until(lambda: "the server does not know this site's key" in log.read_text(), "the stranger is told")
    lab.kill("stranger")
    assert "connected" not in log.read_text().replace("somebody else is connected", "")
    deceived = lab.processes.pop("deceived")
    until(lambda: deceived.poll() is not None, "the deceived gives up")
    assert deceived.returncode == 2
    assert "is not the one that --ca belongs to" in (lab.home / "deceived.log").read_text()
    lab.nobody_is_left("deceived")


EVIL = """
import json, sys, time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path(r"{home}/touched-{{}}".format("server" if "serverapp" in sys.argv[0] else "site")).touch()
client = ClientApp()
server = ServerApp()


@client.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)


@server.main()
def run(grid, context):
    asked = [Message(RecordDict({{"a": ConfigRecord({{}})}}), n, "query") for n in grid.get_node_ids()]
    said = [r.error.reason if r.has_error() else "done" for r in grid.send_and_receive(asked, timeout={patience})]
    Path(r"{home}/said.json").write_text(json.dumps(said))
"""


def foreign_code_is_refused(lab: Laboratory) -> None:
    """The server sends its own app."""
    app = lab.home / "evil"
    app.mkdir()
    (app / "evil.py").write_text(EVIL.format(home=lab.home, patience=PATIENCE))
    (app / "pyproject.toml").write_text(
        '[project]\nname = "evil"\nversion = "1.0.0"\ndescription = "x"\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "x"\n'
        '[tool.flwr.app.components]\nserverapp = "evil:server"\nclientapp = "evil:client"\n'
    )
    run_flwr(lab.home / "server", "run", str(app), "headwise")
    until((lab.home / "said.json").exists, "the sites answer")
    said = json.loads((lab.home / "said.json").read_text())
    assert len(said) == len(SITES)
    assert all("this site only runs its own Headwise, but the app contains" in each for each in said), said
    assert (lab.home / "touched-server").exists()
    assert not (lab.home / "touched-site").exists()


def refused_by_policy(lab: Laboratory) -> None:
    write_site(lab.home / "site2", SITES["site2"], 'methods = ["fedavg"]')
    done = lab.deploy(experiment("fedper", rounds=1), "refused", fails=True)
    assert "client 2 can't take part: site2" in done.stderr
    assert "site2 does not allow the method 'fedper': allowed are fedavg." in done.stderr
    assert not (lab.home / "refused").exists()
    write_site(lab.home / "site2", SITES["site2"])


@pytest.mark.long
def test_sites_and_servers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    asked = experiment("fedper", rounds=4, evaluate=POST, faults={"on_failure": "retry"})

    def rounds() -> int:
        return len(hw.Run(tmp_path / "run").rounds)

    with laboratory(tmp_path) as lab:
        refused_by_policy(lab)
        lab.write(asked)
        words = ("deploy", "exp.toml", "--server", "server", "--out", "run")
        lab.start("deploy", *words)
        until((tmp_path / "run" / "sites.jsonl").exists, "a site has answered")
        lab.kill("site1")
        lab.join("site1")
        until(lambda: rounds() >= 2, "the second round ends")
        for process in processes_of(tmp_path / "server", "flwr-serverapp"):
            os.kill(process, signal.SIGKILL)
        failed(lab)
        lab.start("deploy", *words)
        until(lambda: rounds() >= 3, "the third round ends")
        lab.kill("server")
        failed(lab)
        lab.start("server", "server", "start", "server", "--port", str(lab.port))
        until(lab.listens, "the server listens again")
        done = lab.do(*words, "--json")
    assert json.loads(done.stdout)["ended"] == "finished"
    hw.run(asked, tmp_path / "local")
    assert bits_at_sites(tmp_path / "run", tmp_path) == bits(tmp_path / "local")


def failed(lab: Laboratory) -> None:
    """The command reports that the run failed, and the run can be resumed."""
    until(lambda: lab.processes["deploy"].poll() is not None, "deploy ends")
    assert lab.processes.pop("deploy").returncode == 2
    assert hw.Run(lab.home / "run").ended == "unfinished"


@pytest.mark.long
def test_masked_sums_of_real_sites_are_the_plain_ones(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 2, "evaluate": POST, "sampling": {"ratio": 1.0}}
    with laboratory(tmp_path) as lab:
        for site, clients in SITES.items():
            write_site(tmp_path / site, clients, "plain = false")
        refused = lab.deploy(experiment("scaffold", **changes), "plain", fails=True)
        assert "only sends masked sums, but secure.sums is false in the experiment." in refused.stderr
        lab.deploy(experiment("scaffold", secure={"sums": True}, **changes), "masked")
    hw.run(experiment("scaffold", **changes), tmp_path / "local")
    assert 0 < relative_distance(tmp_path / "masked", tmp_path / "local") < 1e-6
    rows = [json.loads(line) for line in (tmp_path / "masked" / "sites.jsonl").read_text().splitlines()]
    assert [row["task"] for row in rows if row["round"] == 2] == [s for s in STAGES for _ in SITES]
    assert not list(tmp_path.glob("site*/states/*/masks/round-*"))


@pytest.mark.all_methods
def test_all_methods_give_the_same_bits_at_sites(tmp_path: Path) -> None:
    with laboratory(tmp_path) as lab:
        for method in list_names("method"):
            same_bits(lab, method, rounds=2)
        messages_are_large(lab)


def messages_are_large(lab: Laboratory) -> None:
    """A network of ResNet-18's size: messages have 44 MB, which Flower sends in chunks."""
    there = same_bits(lab, "fedavg", model="mlp:3340:2")
    rows = [json.loads(line) for line in (there / "sites.jsonl").read_text().splitlines()]
    assert all(44_000_000 < row["bytes_down"] < 45_000_000 for row in rows)  # once, also for a site with two clients


# -- the commands, without a federation


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["server", "start", "s", "--host", "0.0.0.0", "--insecure-loopback"],
            "--insecure-loopback needs a loopback address, but the address is '0.0.0.0': leave it out.",
        ),
        (
            ["site", "start", "s", "--superlink", "10.0.0.1:8000", "--insecure-loopback"],
            "--insecure-loopback needs a loopback address, but the address is '10.0.0.1': leave it out.",
        ),
        (
            ["site", "start", "s", "--superlink", "here"],
            "--superlink is 'here', but must look like server.example:8000.",
        ),
        *(
            (
                ["server", "start", "s", *words],
                f"{words[0]} is {words[1]!r}, but must be an address or a name like study.example.",
            )
            for words in (
                ("--name", ""),
                ("--name", "\u00fc.example"),
                ("--name", "a..b"),
                ("--host", ""),
                ("--name", "a" * 64),
            )
        ),
        (
            ["server", "start", "s", "--port", "99999"],
            "Invalid value for '--port': 99999 is not in the range 1<=x<=65535.",
        ),
        (
            ["site", "start", "s", "--superlink", "a:1", "--health", "0"],
            "Invalid value for '--health': 0 is not in the range 1<=x<=65535.",
        ),
        (["server", "register", "s", "no.pub"], "no.pub can't be read: No such file or directory."),
        (["site", "list", "s"], "s/site.toml can't be read: No such file or directory."),
        (
            ["site", "init", "s", "--client", "0", "--data", "heart-diseas", "--data-dir", "."],
            "data is 'heart-diseas', which is not known: did you mean 'heart-disease'?",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"headwise: {said}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["", ".", "..", "/", "no/list.json", "exp.toml/list.json", "a-folder"])
@pytest.mark.parametrize("option", ["--key", "--out"])
def test_a_list_that_can_not_be_written_makes_no_key(
    option: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.toml").write_text('data = "synthetic"\npartition = "natural"\nclients = 5\n')
    (tmp_path / "a-folder").mkdir()
    paths = {"--key": "board.key", "--out": "allowed.json", option: out}
    with pytest.raises(SystemExit) as stop:
        main(["server", "sign", "exp.toml", *(word for pair in paths.items() for word in pair)])
    assert stop.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"headwise: {out} can't be " if out else f"headwise: {option} is '', but must be a path.")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-folder", "exp.toml"]


def test_nothing_is_told_to_others(tmp_path: Path) -> None:
    settings = flower_environment(tmp_path)
    assert settings["FLWR_TELEMETRY_ENABLED"] == settings["RAY_USAGE_STATS_ENABLED"] == "0"
