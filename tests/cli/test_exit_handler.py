"""Any exception becomes one sentence: a mistake, an output that can't be written, or a bug with its log."""

from __future__ import annotations

import errno
import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from saying import Headwise, assert_refused, small, snapshot

from headwise.cli.commands import list as list_command

FAILING = """
from dataclasses import dataclass
from headwise.models.base import Model

@dataclass(frozen=True)
class Mine(Model):
    def build(self, task):
        return 1 / 0
"""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Make `list` raise this exception."""

    def fail_by(error: Exception) -> None:
        def list_names(kind: str) -> list[str]:
            raise error

        monkeypatch.setattr(list_command, "list_names", list_names)

    return fail_by


def test_a_bug_is_a_sentence_with_a_log(
    headwise: Headwise,
    broken: Callable[[Exception], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken(ZeroDivisionError("over\nlines"))
    said = headwise("list", "methods")
    assert said.code == 70
    assert said.out == ""
    assert said.err.startswith("headwise: this is a bug in Headwise (ZeroDivisionError: over lines)")
    assert len(said.err.splitlines()) == 1
    found = re.search(r"report it with (.+)\.$", said.err.strip())
    assert found is not None
    text = Path(found[1]).read_text()
    assert "Traceback" in text
    assert "in list_names" in text


def test_a_bug_that_can_not_be_logged_is_on_stderr(
    headwise: Headwise, broken: Callable[[Exception], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    broken(ZeroDivisionError("over"))
    said = headwise("list", "methods")
    assert said.code == 70
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith("headwise: this is a bug in Headwise")


def test_a_pipe_of_ours_that_breaks_is_a_bug(headwise: Headwise, broken: Callable[[Exception], None]) -> None:
    """Unlike a closed stdout, after which there is nothing to report."""
    broken(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert headwise("list", "methods").code == 70


def test_too_little_memory_for_torch_is_one_sentence(headwise: Headwise, broken: Callable[[Exception], None]) -> None:
    broken(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."))
    assert_refused(headwise("list", "methods"), "more memory than is available", "9 bytes")


def test_a_mistake_in_ones_own_file_is_named_by_its_line(headwise: Headwise, here: Path) -> None:
    (here / "mine.py").write_text(FAILING)
    said = headwise(*small(model="mine.py", out="run"))
    assert_refused(said, "mine.py:8 raised ZeroDivisionError: division by zero", "headwise --traceback")
    shown = headwise("--traceback", *small(model="mine.py", out="run"))
    assert shown.code == 2
    assert "Traceback" in shown.err
    assert "return 1 / 0" in shown.err


def test_a_mistake_that_is_nobodys_code_needs_no_traceback(headwise: Headwise) -> None:
    assert "--traceback" not in headwise("run", "--rounds", "0").err


@pytest.mark.parametrize("arguments", [["list", "partitions"], ["--help"]])
def test_a_full_device_is_one_sentence_and_a_reader_that_has_gone_is_none(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwise", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "headwise: the output can't be written: No space left on device.\n")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        done = subprocess.run(command, cwd=tmp_path, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_user_without_a_home_can_run(headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert headwise(*small(out="run"), "--quiet").code == 0
    assert next(iter(snapshot(here))) == "run"


def test_a_folder_that_is_gone_or_not_utf8_is_no_place_to_work(headwise: Headwise, here: Path) -> None:
    strange = here / "a\udcffb"
    strange.mkdir()
    os.chdir(strange)
    assert_refused(headwise("list", "methods"), "the current folder", "UTF-8")
    strange.rmdir()
    assert_refused(headwise("list", "methods"), "the current folder is gone")


@pytest.mark.parametrize("text", ["a\udcffb", "a\0b"])
def test_a_text_that_no_file_could_hold_is_refused_before_training(text: str, headwise: Headwise, here: Path) -> None:
    assert_refused(headwise(*small(out=text)), repr(text), "UTF-8")
    assert_refused(headwise("site", "init", "site", "--client", "0", "--data", "digits", "--name", text), repr(text))
    assert snapshot(here) == {}


def test_what_can_not_be_printed_is_shown_as_escapes(headwise: Headwise) -> None:
    assert_refused(headwise("resume", "a\x1b[31mb"), r"a\x1b[31mb is not the folder of a run: there is no such folder")
