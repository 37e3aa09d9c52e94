"""The federations of a league: a file each, in a folder per version, or a user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, nearest
from ..settings.experiment import Experiment, experiment_from, read_toml

HOME = Path(__file__).parent
FIELDS = ("title", "kind", "experiment")
GIVEN = ("method", "seed", "data_seed", "engine")
"""settings that a cell decides, not the federation"""
EVALUATE = {"every": 10**6, "moments": ["pre"], "start": False, "keep": []}


@dataclass(frozen=True)
class Federation:
    """A small federation with its training settings, on which all methods are compared."""

    name: str
    title: str
    kind: str
    """how its clients differ, in a few words"""
    values: dict[str, Any]
    """an experiment, without method and seeds"""
    source: str
    """as given on the command line: its name, or the path of its file"""

    def experiment(self, method: str, draw: int) -> Experiment:
        """One cell: another draw also has another seed."""
        evaluate = {**EVALUATE, **self.values.get("evaluate", {})}
        values = {**self.values, "evaluate": evaluate, "engine": {"workers": 1}}
        return experiment_from({**values, "method": method, "seed": draw, "data_seed": draw})


def list_versions() -> list[str]:
    return sorted(path.name for path in HOME.glob("v*") if path.is_dir())


def list_federations(version: str) -> list[str]:
    return sorted(path.stem for path in (HOME / version).glob("*.toml"))


def find_federations(version: str, names: Sequence[str]) -> list[Federation]:
    """Those with these names or in these files; all of the version if none is given."""
    if version not in list_versions():
        raise ConfigError(f"version is {version!r}: {nearest(version, list_versions())}")
    known = list_federations(version)
    federations: list[Federation] = []
    for name in names or known:
        if not name.endswith(".toml") and name not in known:
            raise ConfigError(f"federation is {name!r}, which is not a .toml file: {nearest(name, known)}")
        path = Path(name) if name.endswith(".toml") else HOME / version / f"{name}.toml"
        federations.append(read_federation(path, name))
    if len({federation.name for federation in federations}) < len(federations):
        raise ConfigError("two federations have the same name: each file needs a name of its own.")
    return federations


def read_federation(path: Path, source: str) -> Federation:
    values = read_toml(path)
    if {*values} != {*FIELDS} or not all(isinstance(values[k], str) for k in FIELDS[:2]):
        raise ConfigError(f"{path} must have a title, a kind and a table [experiment], and nothing else.")
    if not isinstance(values["experiment"], dict):
        raise ConfigError(f"{path}: experiment is no table.")
    if wrong := [k for k in GIVEN if k in values["experiment"]]:
        raise ConfigError(f"{path}: experiment sets {wrong[0]}, which the league decides.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", path.stem):
        raise ConfigError(f"{path} must have a name of lower-case letters, digits and hyphens.")
    federation = Federation(path.stem, values["title"], values["kind"], values["experiment"], source)
    federation.experiment("fedavg", 0)  # refuses wrong settings
    return federation
