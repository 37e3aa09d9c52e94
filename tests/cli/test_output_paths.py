"""-o and --out write regular files, also through links, and never replace a device, a pipe or a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from saying import Headwise, assert_refused, snapshot

from headwise.disk.files import write_bytes
from headwise.disk.paths import output_folder
from headwise.errors import ConfigError, RunError
from headwise.sites.server.control import progress_file


def test_a_link_stays_and_the_file_behind_it_is_written(here: Path) -> None:
    (here / "other").mkdir()
    (here / "link").symlink_to("second")
    (here / "second").symlink_to("other/page")
    write_bytes(here / "link", b"one")
    write_bytes(here / "link", b"two")
    assert (here / "link").readlink() == Path("second")
    assert snapshot(here / "other") == {"page": b"two"}


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe", "loop"])
def test_what_is_not_a_regular_file_is_refused(kind: str, here: Path) -> None:
    """Devices are refused as well, but not tested here: a bug would replace one of this machine's."""
    path = here / "there"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to("there")
    else:
        os.mkfifo(path if kind == "pipe" else here / "pipe")
        if kind != "pipe":
            path.symlink_to("pipe")
    before = path.lstat()
    with pytest.raises(RunError, match="there can't be written"):
        write_bytes(path, b"data")
    assert path.lstat().st_ino == before.st_ino
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFMT(before.st_mode)


WRITERS = [
    "report run -o",
    "data show --data synthetic:120:3:5:sites=2 --partition iid --clients 3 -o",
    "server sign good.toml --key key --out",
    "site export site --run r --client 0 -o",
]


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("out", ["", ".", "/", "pipe", "file/x", "not/there", "x" * 5000, "x" * 253])
def test_every_file_that_is_written_is_checked_before_work_begins(
    command: str, out: str, headwise: Headwise, here: Path
) -> None:
    os.mkfifo(here / "pipe")
    (here / "file").write_text("")
    (here / "good.toml").write_text("rounds = 1")
    before = snapshot(here)
    said = headwise(*command.split(), out)
    assert_refused(said, "out is ''" if out == "" else f"{out if len(out) < 1000 else '...'} can't be written")
    assert snapshot(here) == before


FOLDERS = ["deploy good.toml --server . --out", "reproduce fedgmh/2 --out", "report run --figures", "server start"]


@pytest.mark.parametrize("command", FOLDERS)
@pytest.mark.parametrize(("out", "why"), [("", "''"), ("file/x", "Not a directory"), ("file", "not a folder")])
def test_every_folder_that_is_written_is_checked_before_work_begins(
    command: str, out: str, why: str, headwise: Headwise, here: Path
) -> None:
    (here / "file").write_text("")
    (here / "good.toml").write_text("rounds = 1")
    before = snapshot(here)
    assert_refused(headwise(*command.split(), out), why)
    assert snapshot(here) == before


def test_a_folder_without_a_name_is_none_to_write_to() -> None:
    """Not by a command, which would write there if this were wrong."""
    with pytest.raises(ConfigError, match="--out is '/', but must be a folder with a name"):
        output_folder("/", "--out")


def test_a_deployment_to_the_current_folder_has_a_place_for_its_end(
    headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path(".")` has no name from which to derive that of a file beside it."""
    from headwise.sites.server import control

    def refuse(home: Path, *_: str) -> str:
        raise RunError("nobody is there.")

    monkeypatch.setattr(control, "run_flwr", refuse)
    monkeypatch.setattr(control, "_check_running", lambda home: None)
    (here / "good.toml").write_text(
        'clients = 2\ndata = "synthetic:120:3:5:sites=2"\npartition = "natural"\nmodel = "mlp:4"\n'
    )
    (here / "here").mkdir()
    os.chdir(here / "here")
    assert_refused(headwise("deploy", "../good.toml", "--server", "..", "--out", "."), "nobody is there")
    assert progress_file(here / "here") == here / ".here.progress"


def test_a_page_goes_through_a_link(headwise: Headwise, here: Path, run: str) -> None:
    (here / "link.html").symlink_to("page.html")
    assert headwise("report", run, "-o", "link.html").code == 0
    assert (here / "link.html").is_symlink()
    assert "fedavg" in (here / "page.html").read_text()


LONG = "x" * 5000


@pytest.mark.parametrize(
    "command",
    [
        *(
            "run --out {}",
            "run --data {}",
            "run --data {}.toml",
            "run --method {}",
            "run --method {}.py",
            "run {}.toml",
        ),
        *("run --model {}.py:f", "run --data-dir {}", "resume {}", "describe {}", "report {}", "check {}.py"),
        *("compare fedavg {}.toml", "list runs --runs {}", "data show {}", "run --set sampling.trace={}"),
    ],
)
def test_paths_of_any_length_get_a_short_sentence(command: str, headwise: Headwise) -> None:
    said = headwise(*command.format(LONG).split())
    assert_refused(said)
    assert len(said.err) < 1500
