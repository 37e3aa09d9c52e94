"""What is installed and run in CI is pinned: packages by version and hash, actions by commit."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rooms import ROOT

LOCK = ROOT / "requirements.lock"
TOOLS = ROOT / ".github" / "tools.lock"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def entries(lock: Path) -> list[str]:
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def names(lock: Path) -> set[str]:
    return {canonicalize_name(Requirement(entry.split(" --hash")[0]).name) for entry in entries(lock)}


@pytest.mark.parametrize("lock", [LOCK, TOOLS], ids=lambda lock: lock.name)
def test_every_package_has_a_version_and_hashes(lock: Path) -> None:
    pattern = re.compile(r"[\w.-]+==[\w.]+(;[^-]+?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [entry[:60] for entry in entries(lock) if not pattern.fullmatch(entry)] == []


def test_direct_dependencies_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    direct = {canonicalize_name(Requirement(text).name) for text in texts} - {"headwise"}
    assert direct <= names(LOCK) | names(ROOT / "requirements-torch.lock")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    actions = re.findall(r"uses: *(\S+)", path.read_text(encoding="utf-8"))
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_install_only_locked_tools(path: Path) -> None:
    installs = re.findall(r"pip install.*", path.read_text(encoding="utf-8"))
    assert [line for line in installs if "--require-hashes" not in line and line != "pip install ."] == []
