"""Compiles the native kernels: one C file, once per instruction set, into one library.

Run by the package's build (`hatch_build.py`) and, where the library is missing, at first use. Imports nothing from
Headwise, since neither it nor torch is installed when a wheel is built.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

HOME = Path(__file__).parent
SOURCES = ("chain.c", "chain.h", "cpu.c")
COMMON = ("-std=c11", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""no -ffast-math, and multiply-adds are fused only where the source says so: otherwise bits would differ by build"""
X86 = {
    "scalar": ("-O2", "-mfma"),
    "avx2": ("-O3", "-mavx2", "-mfma"),
    "avx512": ("-O3", "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma"),
}
ARM = {"scalar": ("-O2",), "neon": ("-O3",)}


def builds() -> dict[str, tuple[str, ...]]:
    """The instruction sets of this CPU architecture, slowest first, and the compiler flags for each."""
    kind = platform.machine().lower()
    return X86 if kind in ("x86_64", "amd64") else ARM if kind in ("aarch64", "arm64") else {}


def compiler() -> str | None:
    """The C compiler, if there is one: $CC, cc, gcc or clang."""
    named = os.environ.get("CC")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def name_of(*more: object) -> str:
    """The library's file name, which changes with the sources and flags."""
    texts = [repr((COMMON, builds(), *more)), *((HOME / name).read_text(encoding="utf-8") for name in SOURCES)]
    return f"chain-{hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:16]}.so"


def compile_to(path: Path, cc: str, *more: str) -> bool:
    """Compile the library, with `more` flags; False if that fails.

    The file appears atomically, even if several processes compile it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        commands = {f"{folder}/cpu.o": [str(HOME / "cpu.c")]}
        for name, flags in builds().items():
            as_ = (f"-DHEADWISE_{name.upper()}", f"-DHEADWISE_BUILD={name}")
            commands[f"{folder}/{name}.o"] = [*flags, *as_, str(HOME / "chain.c")]
        if not builds() or not _all_run([[cc, *COMMON, *c, *more, "-c", "-o", out] for out, c in commands.items()]):
            return False
        if not _all_run([[cc, "-shared", *more, *commands, "-o", str(made), "-lm"]]):
            return False
        os.replace(made, path)
    return True


def _all_run(commands: list[list[str]]) -> bool:
    """Run the commands in parallel."""
    quiet = subprocess.DEVNULL
    running = [subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) for command in commands]
    codes = [process.wait() for process in running]
    return not any(codes)
