"""The manifest: what a run is. It is written first."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import __version__
from ..disk.files import digest, read_bytes, read_json
from ..disk.jsontext import to_json
from ..errors import RunError
from .files import MANIFEST, check, check_version

FORMAT = 1
"""of all files in a run's folder"""
INPUTS = "inputs"
"""the folder for inputs that were passed as Python objects"""
PATHS = ("path", "trace", "files")
"""settings that may name a file in there: stored relative to the run's folder, which people move"""


def hash_code(entry: dict[str, Any]) -> str:
    """The hash of the code that a manifest lists, as used in folder names."""
    plain = {name: entry[name] for name in ("numerics", "packages", "files")}
    return digest(to_json(plain, sort_keys=True).encode())[:8]


def describe(experiment: dict[str, Any], partition: dict[str, Any], data_dir: Path) -> dict[str, Any]:
    """A manifest for a run that starts now."""
    return {
        "format": FORMAT,
        "headwise": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "experiment": experiment,
        "partition": partition,
        "data_dir": str(data_dir),
        "versions": {"python": platform.python_version(), **_versions("torch", "numpy", "safetensors")},
        "git": _revision(),
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count(), **_kernels()},
    }


def name_at_sites(folder: Path) -> str:
    """What sites call the run in the server's `folder`; unique, because its manifest holds the start time."""
    return f"run-{digest(read_bytes(folder / 'manifest.json'))[:16]}"


def describe_guarantee(manifest: dict[str, Any], folder: Path) -> str:
    """The privacy guarantee in words; empty if there is none."""
    spent = manifest.get("privacy")
    if spent is None:
        return ""
    try:
        secret = "; but the noise comes from the seed and protects nobody" if spent.get("source") == "seed" else ""
        bound = f"epsilon {spent['epsilon']:.3g}, delta {spent['delta']:g}"
        return f"{bound}, of one {spent['unit']} against the server{secret}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / 'manifest.json'} is damaged: its privacy is {spent!r}.") from error


def describe_move(manifest: dict[str, Any]) -> str | None:
    """Where the run began and where it is now, if the last bits of results may differ between the two."""
    before = _name_machine(manifest["hardware"], manifest["versions"]["torch"])
    now = describe_machine()
    return f"{before}, and is now on {now}" if before != now else None


def describe_machine() -> str:
    """This CPU, and what else determines the last bits of results."""
    return _name_machine(_kernels(), _versions("torch")["torch"])


def _name_machine(hardware: dict[str, Any], torch: str) -> str:
    return f"{hardware['cpu']} ({hardware['kernels']}, torch {torch})"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raise `RunError` if the folder is not that of a run in our format."""
    if not (folder / "manifest.json").exists():
        raise RunError(_no_run(folder))
    manifest = read_json(folder / "manifest.json")
    check_version(manifest, FORMAT, folder / "manifest.json")
    check(manifest, MANIFEST, folder / "manifest.json")
    home = folder.absolute()
    experiment = _map_paths(manifest["experiment"], lambda p: str(home / p) if p.startswith(f"{INPUTS}/") else p)
    return {**manifest, "experiment": experiment}


def _no_run(folder: Path) -> str:
    """The error for a folder without a manifest."""
    if not folder.is_dir():
        return f"{folder} is not the folder of a run: there is no such folder."
    runs = sorted(p.parent.name for p in folder.glob("*/manifest.json"))
    if not runs:
        return f"{folder} is not the folder of a run: there is no manifest.json in it."
    what = "a comparison of several runs" if (folder / "comparison.json").exists() else "a folder of runs"
    return f"{folder} is {what}: choose one of {', '.join(runs[:10])}{', ...' * (len(runs) > 10)}."


def with_relative_paths(experiment: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The experiment with relative paths of what is in the run's own folder."""
    home = folder.absolute()
    return _map_paths(
        experiment, lambda p: Path(p).relative_to(home).as_posix() if home / INPUTS in Path(p).parents else p
    )


def _map_paths(value: Any, place: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {k: place(v) if k in PATHS and isinstance(v, str) else _map_paths(v, place) for k, v in value.items()}
    return [_map_paths(v, place) for v in value] if isinstance(value, list) else value


def _kernels() -> dict[str, str]:
    """What determines which kernels the libraries choose, and so the last bits: CPU, instruction set and BLAS."""
    import torch  # reading runs must not import torch

    from ..engine.kernels.native.chain import native

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    libraries = [torch.backends.cpu.get_cpu_capability(), blas[1] if blas else "no BLAS"]
    chains = native()  # whatever its instructions, its bits are the same
    return {
        "cpu": _cpu(),
        "kernels": ", ".join([*libraries, *["native"] * bool(chains.library)]),
        "chains": str(chains),
    }


def _cpu() -> str:
    """The CPU's name, on Linux with family and model: different CPUs share a name."""
    try:
        cpu = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M))
    except OSError:
        cpu = {}
    named = cpu.get("model name") or platform.processor() or platform.machine()
    return f"{named} family {cpu['cpu family']} model {cpu['model']}" if "cpu family" in cpu else named


def _versions(*packages: str) -> dict[str, str]:
    return {p: importlib.metadata.version(p) for p in packages}


def _revision() -> str | None:
    """The git revision of this code; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
