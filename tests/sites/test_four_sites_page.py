"""Runs every command of the tutorial on four sites, in the order of the page, on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from laboratory import Laboratory

import headwise as hw
from waiting import PATIENCE, until

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from snippets import ROOT, Block, page, same

PAGE = page(ROOT / "docs" / "tutorials/four-sites.md")
TABLES = page(ROOT / "docs" / "tutorials/hospital-table.md")
STAYS = ("server start", "site start")
RUN = r"run-[0-9a-f]{16}"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def given(home: Path) -> None:
    """What a reader has from the tutorial on tables, to which the page points."""
    table = next(block for block in TABLES.blocks if block.language == "python")
    subprocess.run([sys.executable, "-c", table.code], cwd=home, check=True, timeout=PATIENCE)
    new = next(block for block in TABLES.blocks if block.title == "new.csv")
    (home / new.title).write_text(new.code, encoding="utf-8")


def do(lab: Laboratory, line: str) -> str:
    """Type a line; what it printed."""
    if runs := [path.name for path in (lab.home / "at-va" / "site").glob("states/*")]:
        line = re.sub(RUN, runs[0], line)
    words = line.replace("8000", str(lab.port)).split()
    if words[0] != "headwise":
        return subprocess.run(["bash", "-ec", line], cwd=lab.home, check=True, capture_output=True, text=True).stdout
    if " ".join(words[1:3]) in STAYS:
        lab.start(words[3], *words[1:])
        until(lab.listens, "the server listens")
        return ""
    done = lab.do(*words[1:])
    return done.stderr + done.stdout


def shown(block: Block, printed: str) -> bool:
    """Whether this was printed, after other things; but for how long it took, which is the machine's business."""
    page, found = (re.sub(r"\d+\.\d s\b", "0 s", text) for text in (block.code, printed))
    return same(f"...\n{page}\n...", found)


@pytest.mark.long
def test_four_sites_as_the_page_says(tmp_path: Path) -> None:
    lab, printed = Laboratory(tmp_path), ""
    given(tmp_path)
    try:
        for block in PAGE.blocks:
            if block.title:
                (tmp_path / block.title).write_text(block.code, encoding="utf-8")
            elif block.language == "sh":
                printed = "".join(do(lab, line) for line in block.code.splitlines() if line)
            elif block.language == "text":
                assert shown(block, printed), f"{PAGE.name}:{block.line} shows\n{block.code}\nbut:\n{printed}"
        for name in ("server", "at-va/site"):
            assert lab.processes[name].wait(PATIENCE) == 0, "it was told to stop"
            lab.nobody_is_left(name)
        said = (tmp_path / "at-va" / "site.log").read_text()
    finally:
        lab.end()
    promised = re.search(r"`(round 5: trained .+?)`", PAGE.path.read_text(encoding="utf-8"))
    assert promised
    assert promised[1] in said
    run = hw.Run(tmp_path / "runs" / "study")
    assert (run.ended, len(run.rounds)) == ("finished", 5)
    assert {line["site"] for line in run.sites} == {"basel", "oslo", "rome", "va"}
    assert 'id="federation"' in (tmp_path / "study.html").read_text(encoding="utf-8")
    asked, answered = ((tmp_path / name).read_text().splitlines() for name in ("new.csv", "predictions.csv"))
    assert len(asked) == len(answered) > 1


def test_the_page_is_in_the_list_of_those_with_a_test() -> None:
    """Every kind of command is there, or the test above would show little."""
    from snippets import ELSEWHERE

    assert ELSEWHERE["tutorials/four-sites.md"] == Path(__file__).relative_to(ROOT).as_posix()
    lines = [line for block in PAGE.blocks if block.language == "sh" for line in block.code.splitlines()]
    verbs = [" ".join(line.split()[1:3]) for line in lines if line.startswith("headwise")]
    assert {"data init", "site init", "server start", "server register", "site stop", "server stop"} <= set(verbs)
    assert verbs.count("site start") == verbs.count("site init") == 4
