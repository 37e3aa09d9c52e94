"""docs/models-out.md: every snippet runs, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hospitals import write_patients

from headwise.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "models-out.md"


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), known)
            continue
        for line in text.strip().splitlines():
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(line)[1:])
            assert stop.value.code == 0, (line, capsys.readouterr().err)
    assert known["probabilities"].shape == (5, 2)
    assert sorted(p.name for p in (tmp_path / "hospitals").iterdir()) == ["basel", "cleveland", "va"]
    assert "<svg" in (tmp_path / "va.html").read_text()


def test_it_says_what_there_is() -> None:
    from headwise.engine.plan import SMALL

    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert SMALL == {"best": 2**30, "post": 32 * 2**20}
    assert "32 MB" in text and "1 GB" in text
