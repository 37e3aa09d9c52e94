"""Clients at real SuperNodes: TLS, node authentication, four sites on loopback; and what a site refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import bits, experiment

import headwise as hw
from headwise.flower.deployment import open_site
from headwise.flower.wire import Parcel
from headwise.records import Nothing, encode, from_bytes

BIN = Path(sys.executable).parent
CERTIFICATES = (
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test",
    "openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=127.0.0.1",
    "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile ext",
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Federation:
    """A SuperLink and its SuperNodes, each with a site of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.processes = home, list[subprocess.Popen[bytes]]()
        quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1", "FLWR_TELEMETRY_ENABLED": "0"}
        quiet = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home / "flwr"), "OMP_NUM_THREADS": "1"}
        self.settings = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **quick, **quiet}
        self.address = f"127.0.0.1:{free_port()}"

    def do(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=self.home, env=self.settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done

    def start(self, name: str, *command: str | Path) -> None:
        with (self.home / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(command, cwd=self.home, env=self.settings, stdout=log, stderr=log)
        self.processes.append(started)

    def begin(self) -> None:
        (self.home / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        for line in CERTIFICATES:
            self.do(*line.split())
        (self.home / "flwr").mkdir()
        lab = f'[superlink.lab]\naddress = "{self.address}"\nroot-certificates = "{self.home}/ca.crt"\n'
        (self.home / "flwr" / "config.toml").write_text(lab)
        keys = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        host, port = self.address.split(":")
        where = ("--host", host, "--port", port, "--database", "state.db", "--disable-runtime-dependency-installation")
        self.start("superlink", BIN / "flower-superlink", *keys, "--enable-supernode-auth", *where)
        for _ in range(120):
            with socket.socket() as s:
                if s.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.5)
        raise AssertionError((self.home / "superlink.log").read_text())

    def join(self, k: int, clients: list[int]) -> None:
        self.do("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node{k}")
        self.do(BIN / "flwr", "supernode", "register", f"node{k}.pub", "lab")
        site = self.home / f"site{k}"
        site.mkdir()
        (site / "site.toml").write_text(f'clients = {clients}\ndata = "data"\n')
        keys = ("--root-certificates", "ca.crt", "--auth-supernode-private-key", f"node{k}")
        where = ("--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port()))
        config = ("--node-config", f'site="{site}/site.toml"')
        self.start(f"node{k}", BIN / "flower-supernode", *keys, *where, *config)


@contextmanager
def federation(home: Path) -> Iterator[Federation]:
    found = Federation(home)
    try:
        found.begin()
        yield found
    finally:
        for process in reversed(found.processes):
            process.terminate()
        for process in found.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def taken(home: Path, states: dict[int, Any]) -> dict[int, bytes | None]:
    """The states that the server took, from the sites' folders."""
    files = {p.stem.split("-")[2]: p.read_bytes() for p in home.glob("site*/states/*/client-*/*.safetensors")}
    return {c: files.get(str(from_bytes(data).scalars["digest"])) for c, data in states.items()}


@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen")
def test_four_sites_give_the_same_bits_and_keep_their_states(tmp_path: Path) -> None:
    asked = experiment("fedper", rounds=2)
    order = {k: v for k, v in asked.plain().items() if v is not None and k != "engine"}
    lines = [f"{k} = {toml(v)}" for k, v in order.items()]
    (tmp_path / "exp.toml").write_text("\n".join(lines))
    with federation(tmp_path) as lab:
        for k in range(4):
            lab.join(k, [c for c in range(5) if c % 4 == k])
        flags = ("--superlink", "lab", "--out", "run", "--data-dir", "data", "--json")
        done = lab.do(sys.executable, "-m", "headwise", "deploy", "exp.toml", *flags)
    assert json.loads(done.stdout)["ended"] == "finished"
    hw.run(asked, tmp_path / "local")
    found, wanted = bits(tmp_path / "run"), bits(tmp_path / "local")
    assert taken(tmp_path, found.pop("states")) == wanted.pop("states")
    assert found == wanted


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("settings", "asked", "said"),
    [
        ('methods = ["fedavg"]', {"method": "fedper"}, "this site does not allow the method 'fedper'"),
        ("", {"method": "/tmp/mine.py"}, "this site does not allow the method '/tmp/mine.py'"),
        ("", {"model": ["/tmp/net.py"]}, "this site runs its own Headwise only, not the file '/tmp/net.py'"),
        ("", {"data": "/tmp/data.py"}, "this site runs its own Headwise only, not the file '/tmp/data.py'"),
        ("largest = 1", {"method": "x" * 10**6}, "this site takes messages of 1,000,000 bytes at most"),
    ],
)
def test_a_site_refuses_what_it_does_not_allow(settings: str, asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(f'clients = [0]\ndata = "data"\n{settings}\n')
    answer, clients = open_site(str(tmp_path / "site.toml"))
    order = {"run": "run-1", "experiment": json.dumps(asked), "visits": []}
    assert clients == [0]
    assert said in json.loads(answer(Parcel(json.dumps(order), [])).text)["error"]
    assert [p.name for p in tmp_path.iterdir()] == ["site.toml"]


def test_a_site_refuses_clients_of_others(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('clients = [1]\ndata = "data"\n')
    answer, _ = open_site(str(tmp_path / "site.toml"))
    visit = {"task": "fit", "client": 0, "t": 1, "measure": False, "down": 0, "state": ""}
    order = {"run": "run-1", "experiment": json.dumps(experiment("standalone").plain()), "visits": [visit]}
    parcel = Parcel(json.dumps(order), [encode(Nothing())])
    assert "does not have the clients [0]" in json.loads(answer(parcel).text)["error"]
