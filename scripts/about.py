"""Which machine and which versions this is: `make about`, and the first lines of CI."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import torch


def processor() -> str:
    """The CPU by its maker's name, where Linux says it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1] if named else platform.machine()


def libraries() -> str:
    """The BLAS that torch multiplies with, and oneDNN, as torch names them."""
    built = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    lines = [line.strip(" -") for line in built.splitlines() if re.search("Math Kernel Library|MKL-DNN", line)]
    return "; ".join(
        [f"BLAS {blas[1] if blas else 'unknown'}", *(line.split(" for ")[0].split(" (Git")[0] for line in lines)]
    )


def main() -> None:
    """Say it in four lines."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"machine   {processor()}, {os.cpu_count()} cores, {memory:.1f} GiB of memory, {platform.platform()}")
    print(f"kernels   {torch.backends.cpu.get_cpu_capability()}; {libraries()}")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "flwr"))
    print(f"versions  Python {platform.python_version()}, {versions}")
    chosen = {k: v for k, v in os.environ.items() if re.match(r"(ATEN|MKL|ONEDNN|DNNL|OMP|OPENBLAS)_", k)}
    print(f"settings  {' '.join(f'{k}={v}' for k, v in sorted(chosen.items())) or 'none'}")


if __name__ == "__main__":
    main()
