"""Archives and batches of images, damaged at random: one sentence, and nothing written where it should not be."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing import damaged, fuzzed, try_call
from hypothesis import given
from hypothesis import strategies as st

from headwise.data.files import unpack
from headwise.data.sources.cifar10 import read_batch
from headwise.errors import DataError


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in ("set/a.txt", "set/b/c.txt"):
            bundle.writestr(zipfile.ZipInfo(name), b"content " * 9)
    return made.getvalue()


def tarred(compress: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=compress) as bundle:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name in ("set/a.txt", "set/b/c.txt"):
            info = tarfile.TarInfo(name)
            info.size = 72
            bundle.addfile(info, io.BytesIO(b"content " * 9))
    return made.getvalue()


BATCH = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}, 2)


def try_to_unpack(room: Path, name: str, content: bytes) -> None:
    """In a folder of its own inside another, where whatever escapes would be seen."""
    inner = room / "inner"
    inner.mkdir(exist_ok=True)
    archive, target = inner / name, inner / "set"
    archive.write_bytes(content)
    try_call(lambda: unpack(archive, target), DataError, str(archive))
    assert [p.name for p in room.iterdir()] == ["inner"]
    assert {p.name for p in inner.iterdir()} <= {name, "set"}
    for path in sorted(target.rglob("*"), reverse=True):
        assert not path.is_symlink()
        path.rmdir() if path.is_dir() else path.unlink()
    if target.is_dir():
        target.rmdir()
    else:
        target.unlink(missing_ok=True)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return tmp_path


@fuzzed
@given(damaged(zipped()))
def test_damaged_zips(room: Path, content: bytes) -> None:
    try_to_unpack(room, "set.zip", content)


@fuzzed
@given(damaged(tarred("w:gz")))
def test_damaged_packed_tars(room: Path, content: bytes) -> None:
    try_to_unpack(room, "set.tar.gz", content)


@fuzzed
@given(damaged(tarred()).map(lambda data: gzip.compress(data, mtime=0)))
def test_damaged_tars(room: Path, content: bytes) -> None:
    try_to_unpack(room, "set.tar.gz", content)


@fuzzed
@given(damaged(BATCH) | st.binary(max_size=60).map(lambda tail: BATCH[:40] + tail))
def test_damaged_batches(room: Path, content: bytes) -> None:
    path = room / "batch"
    path.write_bytes(content)
    if found := try_call(lambda: read_batch(path, "labels", 10), DataError, str(path)):
        assert len(found[0]) == len(found[1])


def test_the_good_ones_are_good(room: Path) -> None:
    for name, content in (("set.zip", zipped()), ("set.tar.gz", tarred("w:gz"))):
        (room / name).write_bytes(content)
        target = room / name.replace(".", "-") / "set"
        target.parent.mkdir()
        unpack(room / name, target)
        assert (target / "b" / "c.txt").read_bytes() == b"content " * 9
