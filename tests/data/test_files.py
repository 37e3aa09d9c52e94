"""Finding, unpacking, downloading and reading: nothing is trusted, and every failure is one sentence."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tiny_files import write_gzip

from headwise.data import files
from headwise.data.files import Download, Layout, check_labels, locate, read_bytes, read_text, unpack
from headwise.errors import DataError

PLAIN = Layout(("set", "Set/raw"), ("a.bin.gz", "b.txt"))


def sentence(part: str) -> str:
    return rf"\A[^\n]*{re.escape(part)}[^\n]*\.\Z"


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def layout_of(name: str) -> Layout:
    return Layout(("set",), ("b.txt",), (Download(f"https://example.org/{name}", "0" * 64),))


def pack_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as bundle:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return path


def pack_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as bundle:
        for name, content in members.items():
            bundle.writestr(name, content)
    return path


ARCHIVERS = [(pack_tar, "set.tar.gz"), (pack_zip, "set.zip")]


@pytest.mark.parametrize("home", ["", "set", "Set/raw"])
def test_files_are_found_directly_and_in_the_usual_folders(tmp_path: Path, home: str) -> None:
    place = fill(tmp_path / home, "a.bin.gz", "b.txt")
    assert locate(tmp_path, PLAIN) == [place / "a.bin.gz", place / "b.txt"]


def test_an_unpacked_file_stands_for_the_packed_one(tmp_path: Path) -> None:
    fill(tmp_path / "set", "a.bin", "b.txt")
    assert locate(tmp_path, PLAIN)[0].name == "a.bin"


def test_common_file_names_need_a_folder_with_a_known_name(tmp_path: Path) -> None:
    layout = Layout(("set",), ("b.txt",), unique_names=False)
    fill(tmp_path, "b.txt")
    assert layout.find(tmp_path) == []
    assert layout.find(fill(tmp_path / "set", "b.txt"))


def test_the_first_complete_layout_is_taken(tmp_path: Path) -> None:
    other = Layout(("other",), ("c.txt",))
    fill(tmp_path / "set", "b.txt")
    fill(tmp_path / "other", "c.txt")
    assert [path.name for path in locate(tmp_path, PLAIN, other)] == ["c.txt"]


def test_without_a_download_the_sentence_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=sentence(f"{tmp_path}/set/a.bin.gz, {tmp_path}/set/b.txt")):
        locate(tmp_path, PLAIN)


@pytest.mark.parametrize(("pack", "name"), ARCHIVERS)
def test_an_archive_is_unpacked_without_leftovers(tmp_path: Path, pack: Callable[..., Path], name: str) -> None:
    pack(tmp_path / name, {"set/b.txt": b"hello", "set/deep/c": b""})
    assert locate(tmp_path, layout_of(name))[0].read_text() == "hello"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", name]


@pytest.mark.parametrize(("pack", "name"), ARCHIVERS)
@pytest.mark.parametrize("evil", ["../evil", "/tmp/headwise-evil", "set/../../evil"])
def test_no_archive_writes_outside_of_its_folder(
    tmp_path: Path, pack: Callable[..., Path], name: str, evil: str
) -> None:
    home = fill(tmp_path / "data")
    pack(home / name, {"set/b.txt": b"hello", evil: b"boo"})
    with pytest.raises(DataError, match=sentence("outside its folder")):
        locate(home, layout_of(name))
    assert [path.name for path in home.iterdir()] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert not Path("/tmp/headwise-evil").exists()


def test_a_file_without_a_name_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as bundle:
        bundle.writestr("x", b"hello")
    content = (tmp_path / "set.zip").read_bytes()
    (tmp_path / "set.zip").write_bytes(content.replace(b"x", b"\0"))
    with pytest.raises(DataError, match=sentence("can't be unpacked")):
        locate(tmp_path, layout_of("set.zip"))


def test_links_in_an_archive_are_not_made(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as bundle:
        link = tarfile.TarInfo("set/b.txt")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        bundle.addfile(link)
    with pytest.raises(DataError, match=sentence("can't be unpacked")):
        locate(tmp_path, layout_of("set.tar.gz"))


@pytest.mark.parametrize(("pack", "name"), ARCHIVERS)
def test_a_truncated_archive_leaves_nothing(tmp_path: Path, pack: Callable[..., Path], name: str) -> None:
    noise = np.random.default_rng(0).bytes(50_000)
    path = pack(tmp_path / name, {"set/b.txt": noise})
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(DataError, match=sentence("can't be unpacked")):
        locate(tmp_path, layout_of(name))
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_that_grows_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_ARCHIVE", 10)
    with pytest.raises(DataError, match=sentence("unpacks to more than")):
        unpack(pack_zip(tmp_path / "set.zip", {"set/b.txt": b"x" * 11}), tmp_path / "set")


def test_an_unfinished_copy_is_named(tmp_path: Path) -> None:
    pack_tar(tmp_path / "set.tar.gz", {"set/b.txt": b"hello"})
    fill(tmp_path / "set", "other")
    with pytest.raises(DataError, match=sentence(f"{tmp_path}/set must hold b.txt")):
        locate(tmp_path, layout_of("set.tar.gz"))


class Reply:
    """What `requests.get` would return."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.headers = {"content-length": str(len(content))}

    def raise_for_status(self) -> None: ...

    def iter_content(self, chunk_size: int) -> list[bytes]:
        return [self.content]


def answer(monkeypatch: pytest.MonkeyPatch, reply: bytes | Exception) -> None:
    def get(*_: Any, **__: Any) -> Reply:
        if isinstance(reply, Exception):
            raise reply
        return Reply(reply)

    monkeypatch.setattr(requests, "get", get)


def test_a_download_is_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, b"hello")
    item = Download("https://example.org/b.txt", hashlib.sha256(b"hello").hexdigest())
    (path,) = locate(tmp_path / "new", Layout(("set",), ("b.txt",), (item,)))
    assert path == tmp_path / "new/set/b.txt"
    assert path.read_text() == "hello"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"something else", "its sha256 differs"),
        (requests.ConnectionError("no route"), "ConnectionError"),
        (requests.HTTPError("404"), "HTTPError"),
        (requests.Timeout(), "Timeout"),
    ],
)
def test_a_failed_download_says_what_to_put_where_and_leaves_no_trace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    reply: bytes | Exception,
    why: str,
) -> None:
    answer(monkeypatch, reply)
    with pytest.raises(DataError, match=sentence(f"({why}): please provide {tmp_path}/new/set.zip")) as caught:
        locate(tmp_path / "new", layout_of("set.zip"))
    assert caught.value.__suppress_context__
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_gz_is_read_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(write_gzip(b"hello"))
    assert read_bytes(tmp_path / "a.gz") == b"hello"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.gz", write_gzip(b"hello" * 1000)[:-12]),
        ("a.gz", b"not packed"),
        ("a.gz", write_gzip(b"x" * 101)),
        ("a.gz", b""),
        ("a", b"x" * 101),
        ("a", b""),
        ("a", None),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence(f"{tmp_path}/{name}")):
        read_bytes(tmp_path / name, limit=100)


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=sentence("byte 3")):
        read_text(tmp_path / "a")


@pytest.mark.parametrize("labels", [[0, 3], [0, -1], [0.0, 1.0], [0], [[0], [1]]])
def test_labels_must_fit(labels: list[Any]) -> None:
    with pytest.raises(DataError, match=sentence("labels")):
        check_labels(np.array(labels), classes=3, samples=2, path=Path("file"))
