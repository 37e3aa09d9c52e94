"""Starts Flower's own processes safely: with TLS and keys, and at sites without foreign code."""

from __future__ import annotations

import io
import ipaddress
import os
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
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
OTHERS = ("flwr-serverapp", "flwr-simulation", "flwr-agentapp", "flwr-model", "flwr-connector")
"""other commands that Flower could be asked to start at a site"""
LABEL = r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
"""a part of a DNS name"""
TRIES, PAUSE = 30, 5.0
"""restarts of a node that failed, and seconds between them: after a kill, Flower takes a minute to let it back in"""
START = """#!{python}
from headwise.sites.transport.processes import start_client_app

start_client_app()
"""
REFUSE = """#!/bin/sh
echo "headwise: this site does not run $0" >&2
exit 1
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
    return [str(BIN / "flower-superlink"), *secured, *where, "--disable-runtime-dependency-installation"]


def flower_config(home: Path, host: str, port: int, insecure: bool) -> None:
    """Let Flower's own commands find the server when FLWR_HOME is `home`."""
    here = host if loopback(host) else "127.0.0.1"
    safety = "insecure = true" if insecure else f"root-certificates = {to_toml(str(home / 'ca.crt'))}"
    text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{here}:{port}"\n{safety}\n'
    write_bytes(home / "config.toml", text.encode())


def supernode(home: Path, address: str, root: Path | None, port: int) -> list[str]:
    """Without a root certificate, the connection is insecure."""
    keys = ["--root-certificates", str(root), "--auth-supernode-private-key", str(home / "site.key")]
    where = ["--superlink", address, "--host", "127.0.0.1", "--port", str(port)]
    config = ["--node-config", f"site={to_toml(str(home / 'site.toml'))}"]
    return [str(BIN / "flower-supernode"), *(["--insecure"] if root is None else keys), *where, *config]


def environment(home: Path, *, guarded: bool = False) -> dict[str, str]:
    """Variables for Flower's processes: no telemetry; `guarded`, they can only start Headwise's own app."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
    path = [str(_guard(home)), str(BIN)] if guarded else [str(BIN)]
    usual = {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "PATH": ":".join([*path, os.environ.get("PATH", "")])}
    return {**os.environ, **quiet, **quick, **usual}


def _guard(home: Path) -> Path:
    """Make a folder of commands that shadow Flower's own on the PATH."""
    folder = home / "bin"
    with failing_clearly(folder):
        folder.mkdir(exist_ok=True)
        for name in ("flwr-clientapp", *OTHERS):
            text = START.format(python=sys.executable) if name == "flwr-clientapp" else REFUSE
            write_bytes(folder / name, text.encode())
            (folder / name).chmod(stat.S_IRWXU)
    return folder


def attend(command: Sequence[str], settings: dict[str, str], *, failed: Callable[[], None] | None = None) -> int:
    """Run a command until it ends or this process is told to stop; if `failed` is given, call it and retry."""
    told: list[int] = []
    for _ in range(1 if failed is None else TRIES):
        process = subprocess.Popen(command, env=settings)

        def end(number: int, *_: object, process: subprocess.Popen[bytes] = process) -> None:
            told.append(number)
            process.terminate()

        before = {s: signal.signal(s, end) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = process.wait()
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)
        if told or code == 0 or failed is None:
            return 0 if told else code
        failed()
        time.sleep(PAUSE)
    return 1


def flwr(home: Path, *arguments: str) -> str:
    """The output of one of Flower's own commands; a failure is one sentence."""
    command = [str(BIN / "flwr"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(home))
    if done.returncode:
        said = " ".join(re.sub(r"[╭╮╰╯│─]", " ", done.stderr or done.stdout).split())  # Flower boxes its errors
        raise RunError(f"flwr {arguments[0]} failed: {said}")
    return done.stdout


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


def start_client_app() -> None:
    """Entry point of the `flwr-clientapp` that `headwise site start` puts on the PATH."""
    from .grid import run_checked

    run_checked(check_app)
