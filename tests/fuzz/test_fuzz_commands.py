"""Every verb with bad input: one sentence and exit code 2, or work begins; never a traceback.

The work itself is stopped where it would begin, which counts as accepted.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import uvicorn
from commands import GOOD, REFUSED_ANYWAY, SMALL, Case, drawn, every_case, furnish, leaves, typed

import headwise as hw
from headwise import testing
from headwise.app import launch
from headwise.audit import auditing
from headwise.cli import main
from headwise.papers import reproduce
from headwise.papers.cost import Costs
from headwise.report import figures
from headwise.sites.server import control
from headwise.sites.site.running import RunningSite

CASES = drawn(int(os.environ.get("HEADWISE_FUZZ", "250")))
BOUND = 4 * 2**30
"""bytes that a case may allocate; no bad input may exceed it"""


class Begun(BaseException):
    """Work would begin here: the input was accepted."""


class Outcome(NamedTuple):
    """Exit code (0 if the work began), stdout, stderr."""

    code: Any
    out: str
    err: str


@pytest.fixture(scope="module")
def furniture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and a site, copied for each test."""
    folder = tmp_path_factory.mktemp("furniture")
    hw.run(hw.Experiment(**{**SMALL, "clients": 3, "rounds": 2}), folder / "run")
    with pytest.raises(SystemExit):
        main(["site", "init", str(folder / "site"), "--client", "0", "--data", SMALL["data"]])
    return folder


@pytest.fixture
def room(furniture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "room"
    shutil.copytree(furniture, folder)
    terminal = furnish(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADWISE_DATA", str(folder / "folder"))
    yield folder
    for end in terminal:
        os.close(end)
    shutil.rmtree(tmp_path)


@pytest.fixture(autouse=True)
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object, **__: object) -> None:
        raise Begun

    for home, name in [
        (launch, "drive"),
        (reproduce, "run_to_end"),
        (auditing, "invert_gradients"),
        (control, "run_server"),
        (RunningSite, "run"),
        (control, "run_flwr"),
        (testing, "failures"),
        (uvicorn.Server, "run"),
    ]:
        monkeypatch.setattr(home, name, begin)
    monkeypatch.setattr(control, "read_status", lambda home: {"pid": 1})
    monkeypatch.setattr(Costs, "seconds", lambda *_: 1.0)
    monkeypatch.setattr(figures, "FIGURES", {})


@pytest.fixture
def headwise(room: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*arguments: str) -> Outcome:
        code: Any = 0
        try:
            main([*arguments])
        except Begun:
            pass
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return Outcome(code, out, err.encode("utf-8", "backslashreplace").decode())

    return call


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let a huge allocation fail at once, before the machine does."""
    torch.zeros(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BOUND, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def everything(folder: Path) -> dict[str, Any]:
    """Everything in the folder: files by their bytes, links by their target."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = content
    return found


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input(case: Case, headwise: Callable[..., Outcome], room: Path) -> None:
    before = everything(room)
    said = headwise(*case.arguments)
    lines, after = said.err.splitlines(), everything(room)
    assert said.code in (0, 2), said.err
    assert "Traceback" not in said.err + said.out
    assert not [name for name in after if name.endswith(".tmp")]
    assert [name for name in before if name != case.value and after.get(name) != before[name]] == []
    if said.code == 2:
        assert len(lines) == 1, said.err
        assert lines[0].startswith("headwise: ")
        assert "more memory than is available" not in lines[0], "it was tried"
        assert said.out == ""
        assert after == before


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_good_input(verb: str, headwise: Callable[..., Outcome]) -> None:
    """Otherwise the bad ones might be refused for another reason."""
    said = headwise(*typed(verb, GOOD[verb]))
    assert said.code == (2 if verb in REFUSED_ANYWAY else 0), said.err


def test_every_verb_and_parameter_has_its_turn() -> None:
    known = {(c.verb, c.parameter) for c in every_case()}
    assert {verb for verb, _ in known} == {verb for verb, command in leaves().items() if command.params}
    assert set(leaves()) == set(GOOD)
    assert {(c.verb, c.parameter) for c in CASES} == known
    assert len(every_case()) > 1000
