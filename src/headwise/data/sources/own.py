"""Your own data: tables, images or arrays that a data.toml describes. `headwise data init` writes one."""

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
from ..own.readers.layouts import fingerprint
from ..own.source import load


@dataclass(frozen=True)
class Own(Source):
    """A user's own files, with natural clients, as a data.toml describes them; `--data path/to/data.toml` is short."""

    default_model: ClassVar[str] = "mlp"

    path: str
    "the data.toml"
    sha256: str = ""
    "of data.toml and all its files, so that a run goes on only where they are the same; filled in by itself"
    task: TaskName | None = None
    "what kind of prediction, where data.toml does not say it; none: guessed from the target"

    def __post_init__(self) -> None:
        """Whole paths, because a run may go on from elsewhere."""
        object.__setattr__(self, "path", str(Path(self.path).absolute()))
        if not self.sha256:
            object.__setattr__(self, "sha256", self._fingerprint())

    def _fingerprint(self) -> str:
        description = read_description(Path(self.path))
        said = to_json({**dump(description), "path": ""})
        return hashlib.sha256(f"{said}\n{fingerprint(description)}".encode()).hexdigest()

    def load(self, folder: Path) -> Dataset:
        """Read the files; `folder` is not used."""
        if self._fingerprint() != self.sha256:
            raise DataError(
                f"{self.path} or its files have changed: their sha256 is not {self.sha256[:12]}... any more."
            )
        return load(self._description()).dataset

    def _description(self) -> Description:
        found = read_description(Path(self.path))
        if self.task and found.task and self.task != found.task:
            raise ConfigError(f"task is {self.task!r}, but {self.path} says {found.task!r}.")
        return replace(found, task=self.task or found.task)
