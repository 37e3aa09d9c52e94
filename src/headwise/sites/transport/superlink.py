"""Flower's SuperLink: whether Flower is installed, how its processes are started, and why a site can't reach one.

Flower's commands are started with TLS and keys, and the apps that they deliver are refused at sites if they have code.
"""

from __future__ import annotations

import http.client
import importlib.util
import io
import ipaddress
import json
import lzma
import os
import re
import secrets
import shlex
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from ...disk.files import explain_write_errors, write_bytes
from ...disk.jsontext import to_toml
from ...errors import ConfigError, RunError

NAME = "headwise"
"""the SuperLink's name in Flower's configuration"""
BIN = Path(sys.executable).parent
APPS = {
    "clientapp": "headwise.sites.apps:client_app",
    "serverapp": "headwise.sites.apps:server_app",
}
SECRET = "tasks.secret"
"""file with the secret that a process needs to take tasks from a SuperLink"""
SHIM = """#!/bin/sh
exec {python} -m headwise.sites.transport.supervisor {name} "$@"
"""
BAD_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError,
    RecursionError, ValueError, KeyError, TypeError, AttributeError,
)  # fmt: skip
"""what reading a hostile archive and the TOML in it can raise"""
MOST_APP = 10**7
"""most bytes of an app, packed or not"""
DNS_LABEL = r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
PORT_SECONDS = 5.0
"""seconds to wait for a port: a command that was just killed may still hold it"""
LISTENING = "0A"
"""the state of a listening socket in /proc/net/tcp"""
CONNECT_SECONDS = 8.0
ANSWER_SECONDS = 15.0
"""seconds within which a connected server's answer must be complete"""
AHEAD = 5
"""seconds that Flower lets a site's clock be ahead of the server's"""
BEHIND = 305
FLEET_PATH = "/v1/fleet/pull-messages"
NAME_MISMATCH = (62, 64)
"""OpenSSL's codes of a certificate for another name or address"""


def check_flower() -> None:
    """Refuse to continue without Flower, before anything that needs it is imported."""
    if missing := [name for name in ("flwr", "cryptography") if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"{missing[0]} is not installed, which servers and sites need: run pip install 'headwise[flower]'."
        )


def check_insecure(host: str, insecure: bool) -> None:
    if insecure and not _is_loopback(host):
        raise ConfigError(f"--insecure-loopback needs a loopback address, but the address is {host!r}: leave it out.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_name(option: str, name: str) -> None:
    """A certificate only takes IP addresses and DNS names."""
    try:
        ipaddress.ip_address(name)
    except ValueError as error:
        if len(name) > 253 or not re.fullmatch(rf"(\*\.)?{DNS_LABEL}(\.{DNS_LABEL})*", name, re.ASCII):
            raise ConfigError(f"{option} is {name!r}, but must be an address or a name like study.example.") from error


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--superlink is {address!r}, but must look like server.example:8000.")
    return host.strip("[]"), int(port)


def local_address(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def superlink_command(home: Path, host: str, port: int, insecure: bool) -> list[str]:
    security = ["--insecure"]
    if not insecure:
        files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
        security = [part for option, name in files.items() for part in (option, str(home / name))]
        security.append("--enable-supernode-auth")
    where = ["--host", host, "--port", str(port), "--database", str(home / "state.db")]
    apart = ["--isolation", "process", *_task_secret(home), "--disable-runtime-dependency-installation"]
    return _bind_command("flower-superlink", *security, *where, *apart)


def superexec_command(home: Path, host: str, port: int, insecure: bool) -> list[str]:
    """Starts the servers of runs; a process of ours rather than the SuperLink's, so that it ends with ours."""
    security = ["--insecure"] if insecure else ["--root-certificates", str(home / "ca.crt")]
    where = ["--runtime-api-address", f"{local_address(host)}:{port}"]
    return _bind_command("flower-superexec", *security, *where, *_task_secret(home))


def _task_secret(home: Path) -> list[str]:
    """Only a process that knows the secret gets tasks."""
    if not (home / SECRET).exists():
        write_bytes(home / SECRET, secrets.token_hex(32).encode(), private=True)
    return ["--superexec-auth-secret-file", str(home / SECRET)]


def _bind_command(*command: str) -> list[str]:
    """Run one of Flower's commands so that it ends with ours."""
    return [sys.executable, "-m", "headwise.sites.transport.supervisor", *command]


def bind_server_app(home: Path) -> None:
    """Shadow the command by which Flower starts a run's server, so that it ends with ours."""
    path = home / "bin" / "flwr-serverapp"
    with explain_write_errors(path):
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, SHIM.format(python=shlex.quote(sys.executable), name=path.name).encode())
        path.chmod(stat.S_IRWXU)


def write_flower_config(home: Path, host: str, port: int, insecure: bool) -> None:
    """Let Flower's own commands find the server when FLWR_HOME is `home`."""
    security = "insecure = true" if insecure else f"root-certificates = {to_toml(str(home / 'ca.crt'))}"
    address = f"{local_address(host)}:{port}"
    text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{address}"\n{security}\n'
    write_bytes(home / "config.toml", text.encode())


def flower_environment(home: Path) -> dict[str, str]:
    """Variables for Flower's processes: no telemetry, no proxy between them, and no child that outlives them."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "NO_PROXY": "*",
        "no_proxy": "*",
        "OMP_NUM_THREADS": "1",
        "PATH": ":".join([str(home / "bin"), str(BIN), os.environ.get("PATH", "")]),
    }


def run_flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """Run one of Flower's own commands and return its JSON; a failure is one sentence."""
    command = [str(BIN / "flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=flower_environment(home))
    if done.returncode:
        box = r"[╭╮╰╯│─]|\x1b\[[\d;]*m"  # how Flower prints its errors
        why = " ".join(re.sub(box, " ", done.stderr or done.stdout).split())
        raise RunError(f"flwr {arguments[0]} failed: {why}")
    try:
        values = json.loads(done.stdout)
    except ValueError:
        values = {"error-message": done.stdout.strip().rpartition("\n")[2]}
    if not values.get("success"):
        raise RunError(f"flwr {arguments[0]} failed: {str(values.get('error-message')).rstrip('.')}.")
    return values


def check_app(fab: bytes) -> None:
    """Refuse an app that contains anything but the names of Headwise's own apps."""
    if len(fab) > MOST_APP:
        raise RunError(f"this site only runs its own Headwise, but the app has {len(fab):,} bytes.")
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as bundle:
            names = {n for n in bundle.namelist() if not n.endswith("/")}
            if names - {".info/CONTENT"} != {"pyproject.toml"} or bundle.getinfo("pyproject.toml").file_size > MOST_APP:
                raise RunError(f"this site only runs its own Headwise, but the app contains {sorted(names)[:5]}.")
            project: dict[str, Any] = tomllib.loads(bundle.read("pyproject.toml").decode())
        components = project["tool"]["flwr"]["app"]["components"]
        dependencies = project["project"].get("dependencies")
    except BAD_ZIP as error:
        raise RunError(f"this site can't read the app: {type(error).__name__}.") from error
    if components != APPS or dependencies:
        raise RunError(f"this site only runs its own Headwise, but the app names {components}.")


def wait_until_free(option: str, host: str, port: int) -> None:
    """Wait for a port that was used until just now; refuse one that somebody else keeps."""
    until = time.monotonic() + PORT_SECONDS
    while why := _explain_taken(host, port):
        if time.monotonic() > until:
            holder = _find_holder(port)
            reason = f"it can't be used ({why}):"
            if holder is not None:
                reason = f"process {holder[0]} ({holder[1]}) listens there: stop it, or"
            raise ConfigError(f"{option} is {port}, but {reason} choose another port.")
        time.sleep(0.2)


def is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PORT_SECONDS).close()
    except OSError:
        return False
    return True


def _explain_taken(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def _find_holder(port: int) -> tuple[int, str] | None:
    """The process that listens on this port, and its command; None if the system does not say."""
    sockets = {f"socket:[{number}]" for number in _find_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's process, or one that has just ended
            if any(os.readlink(each) in sockets for each in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return int(folder.name), " ".join(words).strip()[:100]
    return None


def _find_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENING and int(parts[1].rpartition(":")[2], 16) == port:
                    yield parts[9]


class Problem(NamedTuple):
    why: str
    """a sentence"""
    lasting: bool
    """whether only a person can fix it, so that trying again is pointless"""


def load_authority(ca: Path | None) -> ssl.SSLContext:
    """The certificate that proves who the server is."""
    if ca is None:
        raise ConfigError("--ca is missing: give the server's ca.crt, which proves who it is.")
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise ConfigError(f"--ca is {str(ca)!r}, but must be the server's ca.crt: it has no certificate.") from error
    except OSError as error:
        raise ConfigError(f"--ca is {str(ca)!r}, which can't be read: {error.strerror}.") from error


def find_problem(host: str, port: int, trust: ssl.SSLContext | None) -> Problem | None:
    """What keeps a site from this server: name, network, TLS, protocol or clock; None if nothing does.

    Without `trust`, the connection is not encrypted.
    """
    server = f"the server {host}:{port}"
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as bare, _limit_time(bare):
            if trust is None:
                return _check_protocol(bare, host, server)
            with trust.wrap_socket(bare, server_hostname=host) as safe:
                return _check_protocol(safe, host, server)
    except ssl.SSLCertVerificationError as error:
        return Problem(_explain_distrust(error, host, server), lasting=True)
    except ssl.SSLError:
        return Problem(f"{server} does not speak TLS: check the address, or whether it runs insecurely.", lasting=True)
    except http.client.HTTPException:
        hint = "leave out --insecure-loopback, give --ca" if trust is None else "check the address"
        return Problem(f"{server} does not speak HTTP{' without TLS' * (trust is None)}: {hint}.", lasting=True)
    except socket.gaierror:
        return Problem(f"the server's name {host!r} is unknown here: check --superlink, or the network.", lasting=False)
    except TimeoutError:
        return Problem(f"{server} does not answer within {ANSWER_SECONDS:g} seconds: check the network.", lasting=False)
    except OSError as error:
        return Problem(f"{server} can't be reached ({error.strerror or error}): is it running?", lasting=False)


@contextmanager
def _limit_time(line: socket.socket) -> Iterator[None]:
    """Cut the connection off after `ANSWER_SECONDS`: its own timeout begins again with each byte that comes."""
    line.settimeout(ANSWER_SECONDS)
    spare = line.dup()  # encryption takes over the original
    late = threading.Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            spare.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_SECONDS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
        spare.close()
    if late.is_set():
        raise TimeoutError


def _explain_distrust(error: ssl.SSLCertVerificationError, host: str, server: str) -> str:
    if error.verify_code in NAME_MISMATCH:
        return f"{server} has a certificate for other names: it must be started with --name {host}."
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return f"{server} has a certificate that is not valid now ({error.verify_message}): check both clocks."
    return f"{server} is not the one that --ca belongs to ({error.verify_message}): get its own ca.crt."


def _check_protocol(line: socket.socket, host: str, server: str) -> Problem | None:
    """Request the one path that sites need, without credentials; the answer also has the server's time."""
    connection = http.client.HTTPConnection(host)
    connection.sock = line
    connection.request("POST", FLEET_PATH, headers={"Content-Type": "application/x-protobuf"})
    answer = connection.getresponse()
    if answer.status in (404, 405):
        prefix = FLEET_PATH.rpartition("/")[0]
        return Problem(f"{server} does not offer {prefix}/: is it Headwise's, or its proxy?", lasting=True)
    if answer.status in (502, 503, 504):
        return Problem(f"{server} is a proxy that can't reach the real one (status {answer.status}).", lasting=False)
    try:
        ahead = time.time() - parsedate_to_datetime(answer.getheader("Date", "")).timestamp()
    except (ValueError, OverflowError):
        return None  # the server does not say
    if -BEHIND < ahead < AHEAD + 1:  # the header has whole seconds
        return None
    way = "ahead of" if ahead > 0 else "behind"
    return Problem(f"this machine's clock is {abs(ahead):.0f} seconds {way} the server's: set both clocks.", False)
