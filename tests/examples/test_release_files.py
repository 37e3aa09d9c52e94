"""What goes out with a release agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import headwise

ROOT = Path(__file__).parents[2]
FORMS = [p for p in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if p.stem != "config"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_citation_is_of_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["version"] == headwise.__version__
    assert {"cff-version", "message", "title", "authors", "date-released", "license"} <= found.keys()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{found['version']}] - {found['date-released']}" in changelog


def test_the_notices_name_everything_that_is_not_ours() -> None:
    """Files in the repository that somebody else made: minified scripts and data."""
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    theirs = [p for home in ("src", "tests") for end in ("*.min.js", "*.safetensors") for p in (ROOT / home).rglob(end)]
    theirs = [p for p in theirs if "fixtures" not in p.parts]
    assert len(theirs) >= 3
    assert [p.relative_to(ROOT).as_posix() for p in theirs if p.relative_to(ROOT).as_posix() not in notices] == []


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_name_files_and_targets_that_exist(path: Path) -> None:
    text = "\n".join(step.get("run", "") for step in steps(path))
    files = re.findall(r"\b(?:tests|scripts)/[\w./]+", text)
    assert [name for name in files if not (ROOT / name).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [t for line in re.findall(r"^make (.+)$", text, re.MULTILINE) for t in line.split()]
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
    assert files or targets or path.stem == "release"


def test_nobody_holds_a_token_for_publishing() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "id-token: write" in text
    assert "secrets." not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.stem)
def test_issue_forms_are_whole(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    assert all(part["attributes"]["label"] for part in form["body"])
