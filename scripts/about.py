"""Which machine and which versions this is: `make about`, and the first lines of CI."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version

import torch

from headwise.runs.manifest import describe_machine


def libraries() -> str:
    """The BLAS that torch multiplies with, and oneDNN, as torch names them."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    return "; ".join(
        line.split(" for ")[0].split(" (Git")[0] for line in lines if re.match(".*(Kernel Lib|DNN v)", line)
    )


def main() -> None:
    """Say it in four lines."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"machine   {describe_machine()}, {os.cpu_count()} cores, {memory:.1f} GiB of memory, {platform.platform()}")
    print(f"kernels   {libraries()}")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "flwr"))
    print(f"versions  Python {platform.python_version()}, {versions}")
    chosen = {k: v for k, v in os.environ.items() if re.match(r"(ATEN|MKL|ONEDNN|DNNL|OMP|OPENBLAS)_", k)}
    print(f"settings  {' '.join(f'{k}={v}' for k, v in sorted(chosen.items())) or 'none'}")


if __name__ == "__main__":
    main()
