from __future__ import annotations

from pathlib import Path

import pytest
from saying import Headwise, Said, small

from headwise.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def headwise(here: Path, capsys: pytest.CaptureFixture[str]) -> Headwise:
    """The command line in this process, because starting another takes seconds."""

    def call(*args: str) -> Said:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = capsys.readouterr()
        return Said(stop.value.code, out, err)

    return call


@pytest.fixture
def run(headwise: Headwise) -> str:
    """The folder of a finished run."""
    headwise(*small(out="run"), "--quiet")
    return "run"
