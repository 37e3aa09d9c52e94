"""Your own data: tables, images or arrays described by a data.toml. `headwise data init` writes one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ...disk.jsontext import to_json
from ...errors import ConfigError, DataError
from ...settings.fields import dump
from ...settings.options import TaskName
from ..dataset import Dataset, Source
from ..own.description import Description, read_description
from ..own.layout import Hashes, check_unchanged, fingerprint, hash_files, read_hashes
from ..own.load import load


@dataclass(frozen=True)
class Own(Source):
    """Your own files with natural clients, described by a data.toml; short form: `--data path/to/data.toml`."""

    default_model: ClassVar[str] = "mlp"

    path: str = ""
    "the data.toml; empty: every site has its own"
    sha256: str = ""
    "hash of data.toml and all its files, so that a run only resumes on the same data; filled in automatically"
    task: TaskName | None = None
    "the kind of prediction, if data.toml does not say it; none: guessed from the target"

    files: str = ""
    "list of these files with their sizes, times and hashes, so that a resumed run can say which changed; filled in"
    statistics: str = ""
    "sums of features and quantities over all sites, for their scale; filled in by the server of a federation"
    classes: tuple[str, ...] = ()
    "the names of the classes, for clients at sites, where every data.toml must have the same; empty: not known"

    def __post_init__(self) -> None:
        """Make the path absolute, because a run may resume from another folder."""
        if not self.path:
            return
        object.__setattr__(self, "path", str(Path(self.path).absolute()))
        if not self.sha256:
            object.__setattr__(self, "sha256", self._fingerprint())

    def _fingerprint(self, known: Hashes | None = None) -> str:
        description = read_description(Path(self.path))
        settings = to_json({**dump(description), "path": ""})
        return hashlib.sha256(f"{settings}\n{fingerprint(description, known)}".encode()).hexdigest()

    def hashes(self) -> Hashes:
        return hash_files(read_description(Path(self.path)))

    def check_content(self) -> None:
        """Read all files to find out whether one has changed, although their sizes and times have not."""
        if self.files:
            check_unchanged(read_description(Path(self.path)), read_hashes(Path(self.files)), content=True)

    def load(self, folder: Path) -> Dataset:
        """Read the files; `folder` is not used."""
        if not self.path:
            raise DataError("data is 'own' without a path, which is for clients at sites: name a data.toml.")
        known = read_hashes(Path(self.files)) if self.files else None
        if known is not None:
            check_unchanged(read_description(Path(self.path)), known)
        if self._fingerprint(known) != self.sha256:
            raise DataError(
                f"{self.path} or its files have changed: their sha256 no longer starts with {self.sha256[:12]}."
            )
        return load(self._describe(), known=known).dataset

    def _describe(self) -> Description:
        d = read_description(Path(self.path))
        if self.task and d.task and self.task != d.task:
            raise ConfigError(f"task is {self.task!r}, but {self.path} says {d.task!r}.")
        return replace(d, task=self.task or d.task)
