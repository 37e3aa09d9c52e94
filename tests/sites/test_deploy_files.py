"""The files in deploy/ and the runbook: they can be read, and what they name exists."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from headwise.cli import cli
from headwise.sites.transport.supervisor import LOG_BACKUPS, LOG_BYTES
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEPLOY, RUNBOOK = ROOT / "deploy", (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
UNITS = sorted(DEPLOY.glob("*.service"))
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
SOURCES = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src" / "headwise").rglob("*.py"))
COMMANDS = sorted({
    line.strip()
    for text in [RUNBOOK, CONTAINER, *(p.read_text(encoding="utf-8") for p in UNITS)]
    for line in re.findall(r"headwise ((?:site|server|deploy) [^`\n]*)", text)
})  # fmt: skip
SEEN = [cell for row in re.findall(r"^\| (.+?) \|", RUNBOOK, re.MULTILINE) for cell in re.findall(r"`([^`]+)`", row)]


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_units_can_be_read(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    assert service["ExecStart"].startswith("/opt/headwise/bin/headwise ")
    tries = int(unit(path)["Unit"]["StartLimitBurst"]) * int(service["RestartSec"])
    assert tries < int(unit(path)["Unit"]["StartLimitIntervalSec"]), "or wrong settings are tried for ever"
    assert service["User"] == "headwise"
    if shutil.which("systemd-analyze"):
        here = tmp_path / path.name
        here.write_text(path.read_text(encoding="utf-8").replace("/opt/headwise/bin/headwise", sys.executable))
        found = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=PATIENCE)
        assert [line for line in found.stderr.splitlines() if path.stem.split("@")[0] in line] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_options_exist(line: str) -> None:
    command: click.Command = cli
    words = line.split()
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no headwise {line}"
        command = found
        del words[0]
    known = {name for param in command.params for name in param.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_there_are_commands_to_check() -> None:
    assert len(UNITS) == 2
    assert {line.split()[0] for line in COMMANDS} == {"site", "server", "deploy"}


@pytest.mark.parametrize("said", [text for text in SEEN if " " in text])
def test_the_runbooks_messages_are_headwises(said: str) -> None:
    """Word by word, but for numbers and names, which stand in braces in the code."""
    parts = [re.escape(part) for part in re.split(r"(?<!-)\b(?:\d+|cleveland)\b", said) if len(part.strip()) > 1]
    assert parts
    for part in parts:
        assert re.search(part, SOURCES), f"nothing says {part!r}"


def test_the_container_is_pythons_image_and_no_root() -> None:
    steps = [line.split(None, 1) for line in CONTAINER.splitlines() if re.match(r"[A-Z]+ ", line)]
    kinds = [kind for kind, _ in steps]
    assert steps[0] == ["FROM", "python:3.12-slim"]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert set(kinds) <= {
        *("FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
    }


def test_the_runbook_says_how_much_log_is_kept() -> None:
    count = ("no", "one", "two", "three", "four")[LOG_BACKUPS]
    assert f"{count} older files of {LOG_BYTES // 10**6} MB each" in RUNBOOK
