"""The sites that a server knows: their keys are Flower's, their names ours."""

from __future__ import annotations

from pathlib import Path

from ...disk.files import failing_clearly, read_json, write_json
from ...errors import RunError
from ..transport.envelope import printable
from ..transport.processes import NAME, flwr_json

KNOWN = "sites.json"


def register(home: Path, key: Path) -> tuple[str, bool]:
    """Let in the site with this public key; its name, and whether it is new."""
    name = name_in(key)
    try:
        found = flwr_json(home, "supernode", "register", str(key), NAME, "--name", name)
    except RunError as error:
        if "already in use" in str(error):
            return name, False
        raise
    write_json(home / KNOWN, {**registered(home), str(found["node-id"]): name})
    return name, True


def name_in(key: Path) -> str:
    """The comment of a public key, which `headwise site init` sets to the site's name; else the file's own name."""
    with failing_clearly(key):
        words = key.read_text(encoding="utf-8", errors="replace").split(maxsplit=2)
    if len(words) == 3:
        return printable(words[2].strip())
    return key.parent.name if key.name == "site.key.pub" else key.name.removesuffix(".pub")


def registered(home: Path) -> dict[str, str]:
    """The name of each node by its number."""
    return read_json(home / KNOWN) if (home / KNOWN).exists() else {}
