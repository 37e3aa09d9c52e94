"""The sites that a server knows: their keys are Flower's, their names ours."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from ...disk.files import failing_clearly, read_json, write_json
from ...errors import ConfigError, RunError
from ..transport.envelope import printable
from ..transport.family import running
from ..transport.processes import NAME, flwr_json

KNOWN = "sites.json"


def register(home: Path, key: Path) -> tuple[str, bool]:
    """Let in the site with this public key; its name, and whether it is new."""
    check_running(home)
    name = name_in(key)
    try:
        found = flwr_json(home, "supernode", "register", str(key), NAME, "--name", name)
    except RunError as error:
        if "already in use" in str(error):
            return name, False
        raise
    write_json(home / KNOWN, {**registered(home), str(found["node-id"]): name})
    return name, True


def check_running(home: Path) -> None:
    if running(home) is None:
        raise RunError(f"the server in {home} does not run: start it with headwise server start.")


def name_in(key: Path) -> str:
    """The comment of a public key, which `headwise site init` sets to the site's name; else the file's own name."""
    with failing_clearly(key):
        data = key.read_bytes()
    try:
        load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{key} is not a public key: give the site.key.pub of headwise site init.") from error
    words = data.decode(errors="replace").split(maxsplit=2)
    if len(words) == 3:
        return printable(words[2].strip())
    return key.parent.name if key.name == "site.key.pub" else key.name.removesuffix(".pub")


def registered(home: Path) -> dict[str, str]:
    """The name of each node by its number."""
    return read_json(home / KNOWN) if (home / KNOWN).exists() else {}
