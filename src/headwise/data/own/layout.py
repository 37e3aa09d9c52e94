"""The files that a data.toml describes: their clients, their parts, and whether they have changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...disk.files import read_json
from ...errors import ConfigError, DataError, RunError
from .description import PARTS, Description
from .findings import DataFinding, Report
from .raw import REFERENCES, list_referenced_files

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz"),
    "npz": (".npz",),
    "images": IMAGES,
    "arrays": (".npy", ".json"),
}


def suffix_of(path: Path) -> str:
    """In lower case: `.csv.gz` of a packed table, otherwise what follows the last dot."""
    packed = path.suffix.lower() == ".gz"
    return (path.with_suffix("").suffix + path.suffix if packed else path.suffix).lower()


def stem_of(path: Path) -> str:
    """The name without `suffix_of`."""
    return path.name[: len(path.name) - len(suffix_of(path))]


@dataclass(frozen=True)
class Piece:
    """A file or a folder of images of one client, or a file of all clients if a column names each row's client."""

    path: Path
    client: str | None = None
    part: int = -1
    """0, 1, 2 for training, validation and test; -1: the path does not say"""


def list_folder(folder: Path) -> list[Path]:
    """The contents of a folder, sorted, without hidden files."""
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))
    except OSError as error:
        raise DataError(f"{folder} can't be read: {error.strerror}.") from None


def list_subfolders(folder: Path) -> list[Path]:
    return [p for p in list_folder(folder) if p.is_dir()]


def list_pieces(d: Description, report: Report) -> list[Piece]:
    """The files of tables and arrays, client after client."""
    if os.path.isfile(d.place):
        if not d.client and not d.one_client and d.is_table:
            choices = "name the column with each row's client, or set one_client = true"
            raise ConfigError(f"client is missing: path is one table, so {choices}.")
        return [Piece(d.place, None if d.client else stem_of(d.place))]
    check_folder(d)
    if d.one_client:
        raise ConfigError(f"one_client is true, but path is {str(d.place)!r}, which is not a table.")
    if d.client:
        return [Piece(path) for path in list_files(d.place, d)]
    if folders := list_subfolders(d.place):
        return [piece for folder in folders for piece in _list_client_pieces(folder, d, report)]
    files = [Piece(path, stem_of(path)) for path in list_folder(d.place) if fits(path, d)]
    if not files:
        raise DataError(f"{d.place} has no {d.format} file ({', '.join(SUFFIXES[d.format])}) and no folder.")
    return files


def _list_client_pieces(folder: Path, d: Description, report: Report) -> Iterator[Piece]:
    files = list_files(folder, d)
    if not files:
        text = f"the folder has no {d.format} file ({', '.join(SUFFIXES[d.format])})."
        report(DataFinding("error", "empty client", text, folder, client=folder.name))
    for path in files:
        yield Piece(path, folder.name, _part_of(stem_of(path), path, d, report))


def list_image_folders(d: Description, report: Report) -> list[Piece]:
    """One folder per client, or per client and part, with a folder per class, or one of images and one of masks."""
    check_folder(d)
    folders: list[Piece] = []
    for client in list_subfolders(d.place):
        if d.split.by == "files":
            folders += [Piece(p, client.name, _part_of(p.name, p, d, report)) for p in list_subfolders(client)]
        else:
            folders.append(Piece(client, client.name))
    if not folders:
        raise DataError(f"{d.place} has no folders: each client needs one, with one folder of images per class.")
    return folders


def _part_of(name: str, path: Path, d: Description, report: Report) -> int:
    if d.split.by != "files":
        return -1
    if name not in d.split.part_of:
        text = f"split.by is 'files', but its name is not one of {', '.join(PARTS)}."
        report(DataFinding("error", "unknown part", text, path))
    return d.split.part_of.get(name, 0)


def fits(path: Path, d: Description) -> bool:
    """Whether it is a regular file of the described format, and not hidden; `os.path` raises nothing."""
    hidden = path.name.startswith((".", "_"))
    return suffix_of(path) in SUFFIXES[d.format] and not hidden and os.path.isfile(path)


def list_files(folder: Path, d: Description) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if fits(path, d)]


def check_folder(d: Description) -> None:
    if not os.path.isdir(d.place):
        raise DataError(f"path is {str(d.place)!r}, but there is no such file or folder.")


class FileHash(NamedTuple):
    size: int
    changed: int
    """when, in nanoseconds"""
    sha256: str


Hashes = Mapping[str, FileHash]


def hash_files(d: Description, known: Hashes | None = None, *, fresh: bool = False) -> dict[str, FileHash]:
    """Every file by its name in the described folder; those with the size and time of `known` are not read."""
    read = _hash.__wrapped__ if fresh else _hash
    hashes: dict[str, FileHash] = {}
    for name, path in _files_of(d).items():
        try:
            stat = path.stat()
            before = (known or {}).get(name)
            if before is None or before[:2] != (stat.st_size, stat.st_mtime_ns):
                before = FileHash(stat.st_size, stat.st_mtime_ns, read(path, stat.st_size, stat.st_mtime_ns))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}.") from None
        hashes[name] = before
    return hashes


def fingerprint(d: Description, known: Hashes | None = None) -> str:
    """SHA-256 of the described files and their names."""
    digest = hashlib.sha256()
    for name, file in hash_files(d, known).items():
        digest.update(f"{name}\n{file.sha256}\n".encode())
    return digest.hexdigest()


def check_unchanged(d: Description, known: Hashes, *, content: bool = False) -> None:
    """Raise a DataError that names the first file that differs from `known`; `content`: read all files to check."""
    now = hash_files(d, None if content else known, fresh=content)
    advice = "restore it, or begin anew in another folder"
    for name in [*known, *now]:
        path = d.place if d.place.is_file() else d.place / name
        if name not in now:
            raise DataError(f"{path} has been removed since the run began: {advice}.")
        if name not in known:
            raise DataError(f"{path} has been added since the run began: remove it, or begin anew in another folder.")
        if now[name].sha256 != known[name].sha256:
            raise DataError(f"{path} has changed since the run began: {advice}.")


def read_hashes(path: Path) -> dict[str, FileHash]:
    """The hashes that a run's folder stores."""
    try:
        return {name: FileHash(*entry) for name, entry in read_json(path).items()}
    except (AttributeError, TypeError) as error:
        raise RunError(f"{path} is damaged: it must list the files of the data.") from error


def _files_of(d: Description) -> dict[str, Path]:
    if os.path.isfile(d.place):
        return {d.place.name: d.place}
    check_folder(d)
    files = {p.relative_to(d.place).as_posix(): p for p in list_files(d.place, d)}
    if d.format == "arrays" and REFERENCES in files:
        files |= {path: Path(path) for path in list_referenced_files(d.place)}
    return files


@lru_cache(1 << 17)
def _hash(path: Path, size: int, changed: int) -> str:
    """Hash of one file, cached until its size or time changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
