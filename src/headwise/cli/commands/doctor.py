"""``headwise doctor``: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

import click

from ... import __version__
from ..options import data_option

MODULES = {"pillow": "PIL", "mlflow-skinny": "mlflow", "mkdocs-material": "material"}
"""packages whose module has another name"""


@click.command(name="doctor")
@data_option
def command(data_dir: Path | None) -> None:
    """Show Python, torch, CPU, GPU, kernels, extras, data, disk and write access, with a hint for what is missing."""
    import torch

    from ...app.launch import data_folder
    from ...engine.kernels.native.library import LIMIT, find
    from ...runs.manifest import describe_machine

    _print_line(True, "headwise", f"{__version__}, in {Path(__file__).parents[2]}")
    _print_line(True, "Python", f"{platform.python_version()}, {platform.platform()}")
    _print_line(True, "torch", f"{torch.__version__}; {describe_machine()}; {os.cpu_count()} cores")
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    _print_line(True, "GPU", ", ".join(gpus) or "none: runs use the CPU")
    kernels = find(os.environ.get(LIMIT, ""), compiling=False)
    _print_line(kernels.library is not None, "kernels", str(kernels), optional=True)
    for extra, missing in extras().items():
        hint = f"needs {', '.join(missing)}: pip install 'headwise[{extra}]'"
        _print_line(not missing, f"[{extra}]", hint if missing else "installed", optional=True)
    folder = data_folder(data_dir)
    files = sorted(p.name for p in folder.iterdir() if p.name != "native") if folder.is_dir() else []
    listing = f"{folder}: {', '.join(files[:8])}{' …' if len(files) > 8 else ''}"
    empty = f"{folder} has no public data sets: set HEADWISE_DATA or use --data-dir"
    _print_line(bool(files), "data", listing if files else empty, optional=True)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    _print_line(free > 1, "disk", f"{free:.1f} GiB free in {Path.cwd()}")
    _print_line(_is_writable(Path.cwd()), "writing", f"runs go to {Path.cwd() / 'runs'}; --out chooses another folder")


def extras() -> dict[str, list[str]]:
    """For each extra, the packages it needs that are not here."""
    missing: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("headwise") or ():
        if match := re.match(r"([\w.-]+)(?:\[[^]]*\])?[^;]*;.*extra == ['\"](\w+)['\"]", line):
            package, extra = match.groups()
            if extra in ("dev", "fuzz"):
                continue
            module = MODULES.get(package, package.replace("-", "_"))
            missing.setdefault(extra, []).extend([] if importlib.util.find_spec(module) else [package])
    return missing


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _print_line(works: bool, what: str, text: str, *, optional: bool = False) -> None:
    """With a cross only for what stops work."""
    click.echo(f"{'✓' if works else '-' if optional else '✗'} {what:12} {text}")
