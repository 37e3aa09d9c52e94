"""Bytes and tensors that processes hand each other."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import torch

from headwise.engine.executors import shelf as room
from headwise.engine.executors.shelf import SMALL, Shelf, shared


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
    assert [p.name for p in shelf.folder.iterdir()] == ["lock"]
    other.drop(name)
    shelf.remove()
    assert not shelf.folder.exists()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_shared_tensor_is_one_memory_with_the_same_layout(layout: torch.memory_format) -> None:
    shelf = Shelf.make(0)
    t = torch.randn(5, 3, 4, 4).contiguous(memory_format=layout)
    mine = shelf.share("x", t)
    theirs = shared(shelf.folder / "x", tuple(t.shape), t.stride(), t.dtype)
    assert torch.equal(theirs, t)
    assert theirs.stride() == t.stride()
    mine[2, 1, 0, 3] = 7.0
    assert theirs[2, 1, 0, 3] == 7.0
    shelf.remove()


def test_no_samples_are_no_problem() -> None:
    shelf = Shelf.make(0)
    assert shelf.share("x", torch.empty(0, 3)).shape == (0, 3)
    shelf.remove()


def test_what_a_killed_driver_left_is_swept_away_but_nothing_of_a_living_one(tmp_path: Path) -> None:
    living, dead = Shelf.make(0), tmp_path / "headwise-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "data").write_bytes(b"much")
    starting = tmp_path / "headwise-starting"
    starting.mkdir()
    Shelf.make(0).remove()
    assert not dead.exists()
    assert living.folder.exists()
    assert starting.exists(), "its driver may be about to lock it"
    with (living.folder / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    living.remove()


def test_where_shared_memory_is_small_a_temporary_folder_is_used(tmp_path: Path) -> None:
    shelf = Shelf.make(10**15)
    assert tmp_path not in shelf.folder.parents
    shelf.remove()
