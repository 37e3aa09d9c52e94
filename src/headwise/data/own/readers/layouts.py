"""Finds the files, and the client and part that their paths name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....errors import ConfigError, DataError
from ..description import PARTS, Description
from ..findings import DataFinding, Report
from .pictures import SUFFIXES as IMAGES

SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt", ".data"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson"),
    "npz": (".npz",),
    "images": IMAGES,
    "arrays": (".npy", ".json"),
}


@dataclass(frozen=True)
class Piece:
    """A file of one client, or of all clients if a column names each row's client."""

    path: Path
    client: str | None = None
    part: int = -1
    """0, 1, 2 for training, validation and test; -1: the path does not say"""


@dataclass(frozen=True)
class Folder:
    """A folder of one client's images: one sub-folder per class, or images and masks."""

    path: Path
    client: str
    part: int = -1

    def of(self, name: str) -> list[Path]:
        """The images in the sub-folder `name`."""
        return [p for p in listed(self.path / name) if p.suffix.lower() in IMAGES]

    def names(self) -> list[str]:
        """The sub-folders."""
        return [p.name for p in listed(self.path) if p.is_dir()]


def listed(folder: Path) -> list[Path]:
    """The contents of a folder, sorted, without hidden files."""
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))
    except OSError as error:
        raise DataError(f"{folder} can't be read: {error.strerror}.") from None


def pieces(d: Description, report: Report) -> list[Piece]:
    """The files of tables and arrays, client after client."""
    if d.place.is_file():
        if not d.client and not d.one_client and d.is_table:
            said = "name the column with each row's client, or set one_client = true"
            raise ConfigError(f"client is missing: path is one table, so {said}.")
        return [Piece(d.place, None if d.client else d.place.stem)]
    check_folder(d)
    if d.one_client:
        raise ConfigError(f"one_client is true, but path is {str(d.place)!r}, which is not a table.")
    if d.client:
        return [Piece(path) for path in sorted(d.place.rglob("*")) if fits(path, d)]
    if folders := [p for p in listed(d.place) if p.is_dir()]:
        return [piece for folder in folders for piece in _client(folder, d, report)]
    found = [Piece(path, path.stem) for path in listed(d.place) if fits(path, d)]
    if not found:
        raise DataError(f"{d.place} has no {d.format} file ({', '.join(SUFFIXES[d.format])}) and no folder.")
    return found


def _client(folder: Path, d: Description, report: Report) -> Iterator[Piece]:
    files = [path for path in sorted(folder.rglob("*")) if fits(path, d)]
    if not files:
        text = f"the folder has no {d.format} file ({', '.join(SUFFIXES[d.format])})."
        report(DataFinding("error", "empty client", text, folder, client=folder.name))
    for path in files:
        yield Piece(path, folder.name, _part(path.stem, path, d, report))


def image_folders(d: Description, report: Report) -> list[Folder]:
    """One folder per client, or per client and part."""
    check_folder(d)
    found: list[Folder] = []
    for client in [p for p in listed(d.place) if p.is_dir()]:
        if d.split.by != "files":
            found.append(Folder(client, client.name))
            continue
        parts = [p for p in listed(client) if p.is_dir()]
        found += [Folder(p, client.name, _part(p.name, p, d, report)) for p in parts]
    if not found:
        raise DataError(f"{d.place} has no folders: each client needs one, with one folder of images per class.")
    return found


def _part(name: str, path: Path, d: Description, report: Report) -> int:
    if d.split.by != "files":
        return -1
    said = [(d.split.train, 0), (d.split.val, 1), (d.split.test, 2)]
    found = [number for names, number in said if name in names]
    if not found:
        text = f"split.by is 'files', but its name is not one of {', '.join(PARTS)}."
        report(DataFinding("error", "unknown part", text, path))
    return found[0] if found else 0


def fits(path: Path, d: Description) -> bool:
    hidden = path.name.startswith((".", "_"))
    return path.suffix.lower() in SUFFIXES[d.format] and not hidden and path.is_file()


def check_folder(d: Description) -> None:
    if not d.place.is_dir():
        raise DataError(f"path is {str(d.place)!r}, but there is no such file or folder.")
