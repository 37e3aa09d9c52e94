"""Starts Flower's own processes safely: with TLS and keys, and at sites without foreign code."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import secrets
import shlex
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...disk.files import failing_clearly, write_bytes
from ...disk.jsontext import to_toml
from ...errors import ConfigError, RunError

NAME = "headwise"
"""the SuperLink's name in Flower's configuration"""
BIN = Path(sys.executable).parent
APPS = {
    "clientapp": "headwise.sites.apps:client_app",
    "serverapp": "headwise.sites.apps:server_app",
}
LABEL = r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
"""a part of a DNS name"""
SECRET = "tasks.secret"
"""file with what a process must know to take tasks from a SuperLink"""
BOUND = """#!/bin/sh
exec {python} -m headwise.sites.transport.bound {name} "$@"
"""


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_insecure(host: str, insecure: bool) -> None:
    if insecure and not loopback(host):
        raise ConfigError(f"--insecure-loopback needs a loopback address, but the address is {host!r}: leave it out.")


def check_name(option: str, name: str) -> None:
    """A certificate only takes IP addresses and DNS names."""
    try:
        ipaddress.ip_address(name)
    except ValueError as error:
        if len(name) > 253 or not re.fullmatch(rf"(\*\.)?{LABEL}(\.{LABEL})*", name, re.ASCII):
            raise ConfigError(f"{option} is {name!r}, but must be an address or a name like study.example.") from error


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--superlink is {address!r}, but must look like server.example:8000.")
    return host.strip("[]"), int(port)


def superlink(home: Path, host: str, port: int, insecure: bool) -> list[str]:
    where = ["--host", host, "--port", str(port), "--database", str(home / "state.db")]
    keys = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    safe = [str(home / part) if "." in part else part for part in keys]
    secured = ["--insecure"] if insecure else [*safe, "--enable-supernode-auth"]
    return ["flower-superlink", *secured, *where, *_apart(home), "--disable-runtime-dependency-installation"]


def superexec(home: Path, host: str, port: int, insecure: bool) -> list[str]:
    """Starts the servers of runs; a process of ours rather than the SuperLink's, so that it ends with ours."""
    secured = ["--insecure"] if insecure else ["--root-certificates", str(home / "ca.crt")]
    return ["flower-superexec", *secured, "--runtime-api-address", f"{here(host)}:{port}", *_apart(home)[2:]]


def here(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _apart(home: Path) -> list[str]:
    """Flower starts nothing itself, and gives tasks only to who knows the secret."""
    if not (home / SECRET).exists():
        write_bytes(home / SECRET, secrets.token_hex(32).encode(), private=True)
    return ["--isolation", "process", "--superexec-auth-secret-file", str(home / SECRET)]


def bound(command: Sequence[str]) -> list[str]:
    """One of Flower's commands, bound to the life of ours."""
    return [sys.executable, "-m", "headwise.sites.transport.bound", *command]


def flower_config(home: Path, host: str, port: int, insecure: bool) -> None:
    """Let Flower's own commands find the server when FLWR_HOME is `home`."""
    safety = "insecure = true" if insecure else f"root-certificates = {to_toml(str(home / 'ca.crt'))}"
    text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{here(host)}:{port}"\n{safety}\n'
    write_bytes(home / "config.toml", text.encode())


def environment(home: Path) -> dict[str, str]:
    """Variables for Flower's processes: no telemetry, no proxy between them, and no child that outlives them."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    direct = {"NO_PROXY": "*", "no_proxy": "*"}
    quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
    path = ":".join([str(home / "bin"), str(BIN), os.environ.get("PATH", "")])
    usual = {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "PATH": path}
    return {**os.environ, **quiet, **direct, **quick, **usual}


def bind_server_app(home: Path) -> None:
    """Shadow the command by which Flower starts a run's server, so that it ends with ours."""
    path = home / "bin" / "flwr-serverapp"
    with failing_clearly(path):
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, BOUND.format(python=shlex.quote(sys.executable), name=path.name).encode())
        path.chmod(stat.S_IRWXU)


def flwr(home: Path, *arguments: str) -> str:
    """The output of one of Flower's own commands; a failure is one sentence."""
    command = [str(BIN / "flwr"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(home))
    if done.returncode:
        boxed = r"[╭╮╰╯│─]|\x1b\[[\d;]*m"  # how Flower prints its errors
        said = " ".join(re.sub(boxed, " ", done.stderr or done.stdout).split())
        raise RunError(f"flwr {arguments[0]} failed: {said}")
    return done.stdout


def flwr_json(home: Path, *arguments: str) -> dict[str, Any]:
    """What one of Flower's own commands says in JSON."""
    said = flwr(home, *arguments, "--format", "json")
    try:
        found = json.loads(said)
    except ValueError:
        found = {"error-message": said.strip().rpartition("\n")[2]}
    if not found.get("success"):
        raise RunError(f"flwr {arguments[0]} failed: {str(found.get('error-message')).rstrip('.')}.")
    return found


def check_app(fab: bytes) -> None:
    """Refuse an app that contains anything but the names of Headwise's own apps."""
    with zipfile.ZipFile(io.BytesIO(fab)) as bundle:
        names = {n for n in bundle.namelist() if not n.endswith("/")}
        if names - {".info/CONTENT"} != {"pyproject.toml"} or bundle.getinfo("pyproject.toml").file_size > 10**7:
            raise RunError(f"this site only runs its own Headwise, but the app contains {sorted(names)[:5]}.")
        asked: dict[str, Any] = tomllib.loads(bundle.read("pyproject.toml").decode())
    named = asked["tool"]["flwr"]["app"]["components"]
    if named != APPS or asked["project"].get("dependencies"):
        raise RunError(f"this site only runs its own Headwise, but the app names {named}.")
