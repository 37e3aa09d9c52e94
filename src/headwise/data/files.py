"""Public files: found below a folder, unpacked or downloaded if missing, and read without trusting them."""

from __future__ import annotations

import gzip
import logging
import lzma
import os
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

LARGEST_FILE = 1 << 30
LARGEST_ARCHIVE = 4 << 30
_online = ContextVar("_online", default=True)

_DAMAGE = (
    *(OSError, EOFError, ValueError, RuntimeError, struct.error),
    *(zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


@dataclass(frozen=True)
class Download:
    """A public file or archive; a download whose checksum differs is refused."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar.gz", ".zip"))


@dataclass(frozen=True)
class Layout:
    """The public files of a data set, and the folders in which people keep them."""

    homes: tuple[str, ...]
    """the usual sub-folders; downloads go into the first, and archives contain it"""
    files: tuple[str, ...]
    """their names; a .gz file may also be there unpacked"""
    downloads: tuple[Download, ...] = ()
    """one archive, or one download per file; empty: the user must provide the files"""
    unique_names: bool = True
    """whether the file names identify the data set, so that any folder may hold them"""

    def places(self, folder: Path) -> list[Path]:
        """Where to look, in order."""
        itself = self.unique_names or any(folder.resolve().match(home) for home in self.homes)
        return [folder / home for home in self.homes] + [folder] * itself

    def find(self, folder: Path) -> list[Path]:
        """All files, from the first place that is complete; empty if no place is."""
        for place in self.places(folder):
            files = [_find_present(place / name) for name in self.files]
            if all(files):
                return [path for path in files if path]
        return []


def locate(folder: Path, *layouts: Layout) -> list[Path]:
    """The files of the first layout that is complete below `folder`, unpacked or downloaded if necessary."""
    for layout in layouts:
        if files := layout.find(folder):
            return files
    layout = next((each for each in layouts if _find_archive(each, folder)), layouts[0])
    _provide(layout, folder)
    if files := layout.find(folder):
        return files
    home = folder / layout.homes[0]
    raise DataError(f"{home} must hold {', '.join(layout.files)}: remove it if it is an unfinished copy.")


def read_bytes(path: Path, limit: int = LARGEST_FILE) -> bytes:
    """The file's bytes, unpacked if its name ends in .gz; limited so that a small .gz can't exhaust memory."""
    packed = path.suffix == ".gz"
    try:
        most = limit if packed else min(limit, path.stat().st_size)  # read allocates what it is asked for
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(most + 1)
    except _DAMAGE as error:
        raise DataError(f"{path} can't be read: {_describe_error(error)}.") from None
    if not data or len(data) > limit:
        raise DataError(f"{path} is {f'larger than {limit:,} bytes' if data else 'empty'}.")
    return data


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start} is invalid.") from None


def check_labels(labels: NDArray[Any], classes: int, samples: int, path: Path) -> NDArray[np.int64]:
    """The labels, if there is one for each sample and all are between 0 and `classes` - 1."""
    if labels.shape != (samples,):
        raise DataError(f"{path} has labels of shape {labels.shape} for {samples} samples.")
    if labels.dtype.kind not in "ui" or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        raise DataError(f"{path} has labels that are not whole numbers from 0 to {classes - 1}.")
    return labels.astype(np.int64)


def unpack(archive: Path, target: Path) -> None:
    """Unpack the folder `target.name` of a .zip or .tar.gz to `target`, all or nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as temporary:
            _extract(archive, Path(temporary).resolve())
            if not target.exists():
                os.replace(Path(temporary) / target.name, target)
    except _DAMAGE as error:
        raise DataError(f"{archive} can't be unpacked to {target}: {_describe_error(error)}.") from None


@contextmanager
def forbid_downloads() -> Iterator[None]:
    """Download nothing in here."""
    before = _online.set(False)
    try:
        yield
    finally:
        _online.reset(before)


def download(item: Download, folder: Path, files: str) -> Path:
    """Download a file into `folder` and check it, or leave no trace; `files` is what the user can provide instead."""
    if not _online.get():
        raise DataError(f"{files} is missing, and a site downloads nothing: put it there, or check --data-dir.")
    import pooch  # slow to import, and rarely needed

    pooch.get_logger().setLevel(logging.CRITICAL)
    created = [each for each in (folder, *folder.parents) if not os.path.exists(each)]
    try:
        known_hash = f"sha256:{item.sha256}"
        pooch.retrieve(item.url, known_hash, fname=item.name, path=folder, progressbar=sys.stderr.isatty())
    except (OSError, ValueError) as error:  # network or file system; ValueError is a wrong checksum
        for each in created:
            with suppress(OSError):
                each.rmdir()
        why = type(error).__name__ if isinstance(error, OSError) else "its sha256 differs"
        raise DataError(f"{item.url} could not be downloaded ({why}): please provide {files} yourself.") from None
    return folder / item.name


def _provide(layout: Layout, folder: Path) -> None:
    home = folder / layout.homes[0]
    if not layout.downloads:
        files = ", ".join(str(home / name) for name in layout.files)
        raise DataError(f"there is no download with a known checksum: please provide {files} yourself.")
    missing = [each for each in layout.downloads if each.is_archive or not _find_present(home / each.name)]
    files = ", ".join(str((folder if each.is_archive else home) / each.name) for each in missing)
    for item in missing:
        if item.is_archive:
            unpack(_find_archive(layout, folder) or download(item, folder, files), home)
        else:
            download(item, home, files)


def _find_archive(layout: Layout, folder: Path) -> Path | None:
    paths = (place / d.name for d in layout.downloads if d.is_archive for place in layout.places(folder))
    return next((path for path in paths if os.path.isfile(path)), None)


def _find_present(path: Path) -> Path | None:
    """The file, or its unpacked form. `os.path` does not raise on a folder without read permission."""
    forms = (path, path.with_suffix("")) if path.suffix == ".gz" else (path,)
    return next((form for form in forms if os.path.isfile(form)), None)


def _extract(archive: Path, target: Path) -> None:
    """Write the archive's regular files below `target`; links and devices are skipped."""
    total = 0
    for name, size, stream in _list_members(archive):
        path = (target / name).resolve()
        if not path.is_relative_to(target):
            raise DataError(f"{archive} is refused: its file {name!r} would be written outside its folder.")
        if (total := total + size) > LARGEST_ARCHIVE:
            raise DataError(f"{archive} is refused: it unpacks to more than {LARGEST_ARCHIVE >> 30} GiB.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with stream, path.open("wb") as file:
            copyfileobj(stream, file)


def _list_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The archive's regular files: name, size, content."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                if not info.filename.endswith("/"):  # `is_dir` fails on an empty name
                    yield info.filename, info.file_size, bundle.open(info)
    else:
        with tarfile.open(archive, "r:gz") as bundle:
            for member in bundle:
                if member.isfile() and (content := bundle.extractfile(member)):
                    yield member.name, member.size, content


def _describe_error(error: Exception) -> str:
    """The reason on one line, without the path, which the message already names."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()).rstrip(".") or type(error).__name__
