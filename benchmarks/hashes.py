"""Hashes of small runs, to see whether a change to the code changes a result.

    python benchmarks/hashes.py                                  # every method in every variant, a line each
    python benchmarks/hashes.py fedah fedrep --variant cnn       # only these
    python benchmarks/hashes.py --against ../before/src          # compare with another checkout; exit 1 if any differs

A hash covers the scores of every client in every round, and the states of server and clients after the last one; names
of fields and metrics are left out, so that they may change.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headwise as hw

HERE = Path(__file__).resolve()
MOMENTS = ("pre", "post", "stale", "global")
BASE: dict[str, Any] = {
    "data": "digits",
    "fraction": 0.15,
    "clients": 5,
    "rounds": 3,
    "split": "6:2:2",
    "evaluate": {"moments": ["pre", "post", "global"]},
    "engine": {"workers": 1},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "serial": {},
    "pool": {"engine": {"workers": 2}},
    "threads": {"engine": {"workers": "threads:2"}},
    "plain": {"engine": {"workers": 1, "kernels": "plain"}},
    "adam": {"train": {"optimizer": "adam", "lr": 0.002}},
    "momentum": {"train": {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.01}},
    "batchnorm": {"model": f"{HERE}:batchnorm"},
    "cnn": {"model": f"{HERE}:cnn"},
    "partial": {"sampling": {"ratio": 0.5}},
    "seed": {"seed": 7},
}


def batchnorm(classes: int) -> nn.Module:
    """Two hidden layers, the first one normalized."""
    first = (nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    return nn.Sequential(*first, nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, classes))


def cnn(classes: int) -> nn.Module:
    """Two convolutions, one of them with pooling."""
    first = (nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
    second = (nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, classes))


class Hash:
    """An observer of a run that hashes scores, and the states at its end."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._last: Any = None

    def __call__(self, event: Any) -> None:
        """Take a round that has ended."""
        if hasattr(event, "row") and hasattr(event, "clients"):
            for line in (event.row, *event.clients):
                self._add({k: line[k] for k in MOMENTS if k in line})
        if hasattr(event, "states") and hasattr(event, "progress"):
            self._last = event

    def digest(self) -> str:
        """The hash, once the run has ended."""
        self._add(self._last.progress.server)
        self._add({c: self._last.states[c] for c in self._last.states})
        return self._sha.hexdigest()[:16]

    def _add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            array = value.detach().contiguous().numpy()
            self._sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        elif isinstance(value, Mapping):
            for k in sorted(value):
                self._add(value[k])
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._add(each)
        elif hasattr(value, "__dict__"):
            for each in vars(value).values():
                self._add(each)
        else:
            self._sha.update(repr(value).encode())


def hash_run(method: str, variant: str) -> str:
    """The hash of a run, or why there is none."""
    seen = Hash()
    try:
        with tempfile.TemporaryDirectory() as folder:
            hw.run(hw.Experiment(method=method, **{**BASE, **VARIANTS[variant]}), f"{folder}/run", observers=[seen])
    except hw.HeadwiseError as error:
        return f"refused: {error}"
    return seen.digest()


def compare(arguments: Sequence[str], source: Path) -> int:
    """Run this file with both sources, and print what differs."""
    running = [_start(arguments, path) for path in (source.resolve(), HERE.parents[1] / "src")]
    before, after = (_read(process) for process in running)
    if any(process.returncode for process in running):
        return 2
    keys = sorted({*before, *after})
    differing = [key for key in keys if before.get(key) != after.get(key)]
    for key in differing:
        print(f"{key}: {before.get(key, 'missing')} is now {after.get(key, 'missing')}")
    print(f"{len(keys) - len(differing)} equal, {len(differing)} differ")
    return int(bool(differing))


def _start(arguments: Sequence[str], source: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen([sys.executable, str(HERE), *arguments], env=environment, stdout=subprocess.PIPE, text=True)


def _read(process: subprocess.Popen[str]) -> dict[str, str]:
    """The hash of each method and variant."""
    printed, _ = process.communicate()
    rows = (line.split(maxsplit=2) for line in printed.splitlines())
    return {f"{method} {variant}": digest for method, variant, digest in rows}


def main() -> int:
    """Print the hashes, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("methods", nargs="*", help="names of methods; none: all")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="repeatable; none: all")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    arguments = parser.parse_args()
    if arguments.against:
        return compare([*arguments.methods, *(f"--variant={v}" for v in arguments.variant or ())], arguments.against)
    files = (Path(hw.__file__).parent / "methods").glob("[a-z]*.py")
    for method in arguments.methods or sorted(path.stem for path in files):
        for variant in arguments.variant or VARIANTS:
            print(method, variant, hash_run(method, variant), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
