"""What each dependency costs in megabytes and seconds: python scripts/dependencies.py > docs/dependencies.md"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

MODULES = {"pillow": "PIL", "mlflow-skinny": "mlflow", "pooch": "pooch, requests"}
WHY = {
    "click": "the command line",
    "jinja2": "report pages",
    "numpy": "arrays",
    "pooch": "downloads with a checksum and a progress bar",
    "rich": "progress and tables in a terminal",
    "safetensors": "checkpoints and messages without pickle",
    "torch": "networks",
}
HEAD = """# What each dependency costs

`python scripts/dependencies.py > docs/dependencies.md` writes this page. MB: the installed package, with what it needs
and nothing above it has brought. CPU s: importing it in a new process, beyond starting Python and numpy. A command
imports only what it uses: `headwise list` and `headwise --help` import neither torch nor numpy. {machine}

| install | package | MB | CPU s | for |
|---|---|---:|---:|---|
"""


def add(name: str, extras: frozenset[str], have: dict[str, float]) -> None:
    """Put this distribution and what it needs into `have`, with their sizes in MB."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # for another platform or Python
        return
    if key in have and not extras:
        return
    files = [Path(str(f.locate())) for f in found.files or () if f.suffix != ".pyc"]
    have[key] = sum(f.stat().st_size for f in files if f.is_file()) / 1e6
    for need in map(Requirement, found.requires or ()):
        if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in (extras or {""})):
            add(need.name, frozenset(need.extras), have)


def seconds(code: str) -> float:
    """CPU seconds of this code in a new Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with Path("pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    have: dict[str, float] = {}
    lines: list[str] = []
    start, numpy = min(seconds("pass") for _ in range(3)), min(seconds("import numpy") for _ in range(3))
    for group, wanted in groups.items():
        own = dict(have) if group != "base" else have  # extras do not build on each other
        for need in map(Requirement, wanted if group not in ("dev", "fuzz") else ()):
            before = sum(own.values())
            add(need.name, frozenset(need.extras), own)
            module = MODULES.get(need.name, need.name.replace("-", "_"))
            cost = seconds(f"import numpy; import {module}") - numpy if module != "numpy" else numpy - start
            what = WHY.get(need.name, "")
            lines.append(f"| {group} | {need.name} | {sum(own.values()) - before:.1f} | {max(cost, 0):.2f} | {what} |")
        if group == "base":
            lines.append(f"| base | **all of it** | {sum(have.values()):.1f} | | |")
    machine = f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}, {platform.machine()}."
    print(HEAD.format(machine=machine) + "\n".join(lines))


if __name__ == "__main__":
    main()
