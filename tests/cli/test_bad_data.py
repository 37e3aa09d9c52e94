"""Data that is missing, broken or hostile, seen from the command line."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import requests
from saying import Headwise, assert_refused, snapshot

from headwise.data.sources.cifar10 import BATCHES

ARCHIVE = "cifar-10-python.tar.gz"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for data, and no network."""
    (folder := tmp_path / "data").mkdir()

    def offline(*_: object, **__: object) -> None:
        raise requests.ConnectionError("the network is unreachable")

    monkeypatch.setattr(requests, "get", offline)
    return folder


def archive(*members: tuple[str, bytes]) -> bytes:
    """A .tar.gz of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def batch() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, b"labels": [0, 1, 2]}, 2)


class Hostile:
    """A pickle of this would run a command."""

    def __reduce__(self) -> object:
        return os.system, ("touch owned",)


GOOD = archive(*((f"cifar-10-batches-py/{name}", batch()) for name in BATCHES))


def test_missing_data_without_a_network_says_what_to_provide(headwise: Headwise, here: Path, data: Path) -> None:
    result = headwise("run", "--data", "cifar10", "--data-dir", str(data))
    assert_refused(result, "could not be downloaded (ConnectionError)", f"{data}/cifar-10", "yourself")
    assert snapshot(here) == snapshot(data) == {}


def test_a_data_folder_that_is_a_file_is_named(headwise: Headwise, here: Path, data: Path) -> None:
    (data / "file").write_text("")
    assert_refused(headwise("run", "--data", "mnist", "--data-dir", str(data / "file")), f"{data}/file")
    assert snapshot(here) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "can't be unpacked"),
        (b"this is no archive", "can't be unpacked"),
        (GOOD[: len(GOOD) // 2], "can't be unpacked"),
        (archive(("../outside", b"x")), "'../outside' would be written outside its folder"),
        (archive(("/tmp/headwise-outside", b"x")), "would be written outside its folder"),
        (archive(("elsewhere/file", b"x")), "can't be unpacked"),
        (archive(("cifar-10-batches-py/data_batch_1", batch())), "must hold data_batch_1, data_batch_2"),
    ],
    ids=["empty", "no archive", "truncated", "outside", "absolute", "elsewhere", "incomplete"],
)
def test_a_broken_or_hostile_archive_is_refused(
    content: bytes, words: str, headwise: Headwise, here: Path, data: Path
) -> None:
    (data / ARCHIVE).write_bytes(content)
    assert_refused(headwise("run", "--data", "cifar10", "--data-dir", str(data)), str(data), words)
    assert snapshot(here) == {}
    assert not (data.parent / "outside").exists()
    assert not Path("/tmp/headwise-outside").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({b"data": Hostile(), b"labels": [0]}, 2), "is refused: it names posix.system"),
        (batch()[:100], "is not a pickle of images and labels, or is damaged"),
        (pickle.dumps([1, 2, 3]), "is not a pickle of images and labels"),
        (b"", "is empty"),
    ],
    ids=["hostile", "truncated", "another", "empty"],
)
def test_a_broken_or_hostile_pickle_is_refused(
    content: bytes, words: str, headwise: Headwise, here: Path, data: Path
) -> None:
    for name in BATCHES:
        (data / name).write_bytes(batch())
    (data / BATCHES[2]).write_bytes(content)
    before = snapshot(data)
    assert_refused(headwise("run", "--data", "cifar10", "--data-dir", str(data)), str(data / BATCHES[2]), words)
    assert snapshot(here) == {}
    assert snapshot(data) == before


def test_the_good_archive_is_good(headwise: Headwise, here: Path, data: Path) -> None:
    """Or the refusals above would prove nothing."""
    (data / ARCHIVE).write_bytes(GOOD)
    args = ["--data-dir", str(data), "--partition", "iid", "--clients", "2", "--rounds", "1", "--model", "linear"]
    assert headwise("run", "--data", "cifar10", *args, "--quiet").code == 0


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def test_a_run_is_not_resumed_on_other_data(headwise: Headwise, here: Path, data: Path) -> None:
    for name in HOSPITALS:
        lines = ["63,1,4,140,260,0,1,112,1,3,2,?,?,2\n", "41,0,2,130,204,0,2,172,0,1.4,1,?,?,0\n"] * 10
        (data / f"processed.{name}.data").write_text("".join(lines))
    args = ["--partition", "natural", "--data-dir", str(data), "--rounds", "3", "--out", "run", "--quiet"]
    assert headwise("run", "--data", "heart-disease", *args, "--set", "stop.budget=1e-9").code == 0
    before = snapshot(here)
    with (data / "processed.va.data").open("a") as file:
        file.write("63,1,4,140,260,0,1,112,1,3,2,?,?,2\n")
    assert_refused(headwise("resume", "run"), "run was run on partition", "the data now gives")
    (data / "processed.va.data").unlink()
    assert_refused(headwise("resume", "run"), "processed.va.data")
    assert snapshot(here) == before
