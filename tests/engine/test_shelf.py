"""Bytes and tensors that processes exchange."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.data.federated import Clients
from headwise.engine.executors import shelf as room
from headwise.engine.executors.pool import list_tensors
from headwise.engine.executors.shelf import MARK, PREFIX, SMALL, Shelf, open_shared
from headwise.models.base import Task


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MEMORY", tmp_path)


def test_small_things_are_sent_as_they_are_and_large_ones_by_name() -> None:
    shelf = Shelf.make(0)
    small, large = b"x" * (SMALL - 1), b"y" * SMALL
    assert shelf.put(small) == small
    name = shelf.put(large)
    assert isinstance(name, str)
    other = Shelf(shelf.folder)  # as in another process
    assert other.look(name) == other.look(name) == large
    assert other.take(name) == large
    assert [p.name for p in shelf.folder.iterdir()] == [MARK]
    other.drop(name)
    shelf.remove()
    assert not shelf.folder.exists()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_shared_tensor_is_one_memory_with_the_same_layout(layout: torch.memory_format) -> None:
    shelf = Shelf.make(0)
    t = torch.randn(5, 3, 4, 4).contiguous(memory_format=layout)
    mine = shelf.share("x", t)
    theirs = open_shared(shelf.folder / "x", tuple(t.shape), t.stride(), t.dtype)
    assert torch.equal(theirs, t)
    assert theirs.stride() == t.stride()
    mine[2, 1, 0, 3] = 7.0
    assert theirs[2, 1, 0, 3] == 7.0
    shelf.remove()


def test_no_samples_are_no_problem() -> None:
    shelf = Shelf.make(0)
    assert shelf.share("x", torch.empty(0, 3)).shape == (0, 3)
    shelf.remove()


def test_a_run_with_weights_leaves_no_shelf() -> None:
    """The weights stayed in shared memory, without the mark by which a later run could sweep them."""
    shelf = Shelf.make(0)
    data = Clients(Task((3,), 2), torch.zeros(4, 3), torch.zeros(4), np.array([[4, 4, 4]]), weight=torch.ones(4))
    for name, t in list_tensors(data).items():
        shelf.share(name, t)
    shelf.remove()
    assert not shelf.folder.exists()


def left_by_the_dead(folder: Path, **changes: object) -> Path:
    """A shelf left behind by a killed driver, with its mark changed."""
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    said = room._owner(owner.pid)
    owner.communicate(b"\n")
    folder.mkdir()
    (folder / "x").write_bytes(b"much")
    (folder / "17-3").write_bytes(b"much")
    (folder / MARK).write_text(json.dumps({**said, **changes}))
    return folder


def test_what_a_killed_driver_left_is_swept_away_but_nothing_of_a_living_one(tmp_path: Path) -> None:
    living, dead = Shelf.make(0), left_by_the_dead(tmp_path / f"{PREFIX}dead")
    starting = tmp_path / f"{PREFIX}starting"
    starting.mkdir()
    Shelf.make(0).remove()
    assert not dead.exists()
    assert living.folder.exists()
    assert starting.exists(), "its driver may be about to mark it"
    with (living.folder / MARK).open() as mark, pytest.raises(BlockingIOError):
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    living.remove()


def test_a_shelf_whose_number_another_process_has_now_is_swept(tmp_path: Path) -> None:
    reused = left_by_the_dead(tmp_path / f"{PREFIX}reused", pid=os.getpid())
    Shelf.make(0).remove()
    assert not reused.exists()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("headwise-mine", {}),
        (f"{PREFIX}other-program", {"shelf of": "another"}),
        (f"{PREFIX}other-user", {"user": os.getuid() + 1}),
        (f"{PREFIX}no-pid", {"pid": "5/../6"}),
        (f"{PREFIX}no-start", {"started": None}),
        (f"{PREFIX}more", {"note": "keep this"}),
        (f"{PREFIX}alive", room._owner(os.getpid())),
    ],
)
def test_what_is_not_surely_ours_is_left_alone(name: str, changes: dict[str, object], tmp_path: Path) -> None:
    folder = left_by_the_dead(tmp_path / name, **changes)
    before = sorted(p.name for p in folder.iterdir())
    Shelf.make(0).remove()
    assert sorted(p.name for p in folder.iterdir()) == before


def test_somebody_elses_file_on_a_dead_shelf_stays(tmp_path: Path) -> None:
    folder = left_by_the_dead(tmp_path / f"{PREFIX}dead")
    (folder / "thesis.tex").write_text("mine")
    Shelf.make(0).remove()
    assert [p.name for p in folder.iterdir()] == ["thesis.tex"]


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    home = left_by_the_dead(tmp_path / "home")
    (tmp_path / f"{PREFIX}link").symlink_to(home)
    Shelf.make(0).remove()
    assert (home / "x").exists()


@pytest.mark.parametrize("mark", ["", "5", "[" * 100_000, '{"pid": 1}', "\0"])
def test_a_mark_that_says_nothing_protects_its_folder(mark: str, tmp_path: Path) -> None:
    folder = left_by_the_dead(tmp_path / f"{PREFIX}odd")
    (folder / MARK).write_text(mark)
    Shelf.make(0).remove()
    assert (folder / "x").exists()


def test_where_shared_memory_is_small_a_temporary_folder_is_used(tmp_path: Path) -> None:
    shelf = Shelf.make(10**15)
    assert tmp_path not in shelf.folder.parents
    shelf.remove()
