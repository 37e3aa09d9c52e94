"""The manifest: what a run is, written before anything else."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import RunError
from .files import read_json
from .shapes import MANIFEST, check

FORMAT = 2
"""raised when an older Headwise could not read what a newer one writes"""


def describe(experiment: dict[str, Any], partition: dict[str, Any], data_dir: Path) -> dict[str, Any]:
    """The manifest of a run that starts now."""
    return {
        "format": FORMAT,
        "headwise": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "experiment": experiment,
        "partition": partition,
        "data_dir": str(data_dir),
        "versions": {"python": platform.python_version(), **_versions("torch", "numpy", "safetensors", "scikit-learn")},
        "git": _revision(),
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count()},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """A run's manifest; one from a newer version is refused."""
    found = read_json(folder / "manifest.json")
    version = found.get("format") if isinstance(found, dict) else None
    if not isinstance(version, int) or version < 1:
        raise RunError(f"{folder / 'manifest.json'} is damaged: its format is {version!r}.")
    if version > FORMAT:
        raise RunError(
            f"{folder} is in format {version}, but this Headwise ({__version__}) reads up to {FORMAT}: update it."
        )
    check(found, MANIFEST, folder / "manifest.json")
    return found


def _versions(*packages: str) -> dict[str, str]:
    return {p: importlib.metadata.version(p) for p in packages}


def _revision() -> str | None:
    """The git revision of the code that runs, where it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
