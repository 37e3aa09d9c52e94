"""The library of the native kernels: one C file, compiled once per instruction set.

It is part of a wheel (`hatch_build.py` runs this file, so it imports nothing from Headwise or torch), or else compiled
into the user's cache at first use. `HEADWISE_NATIVE` limits it: ``off``, or the name of the build to run (scalar, avx2,
avx512, neon). If anything fails, torch computes everything.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from ctypes import CDLL, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = "HEADWISE_NATIVE"
_ONCE = threading.Lock()
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


class Library(NamedTuple):
    """The functions of one build; see chain.c."""

    build: str
    bytes: Callable[..., int]
    train: Callable[..., None]
    predict: Callable[..., None]
    kept: Callable[..., int]
    forward: Callable[..., None]
    backward: Callable[..., None]
    convolution_bytes: Callable[..., int]
    convolve: Callable[..., None]
    convolve_back: Callable[..., None]


class Lookup(NamedTuple):
    """The library, or why there is none."""

    library: Library | None
    why: str

    def __str__(self) -> str:
        return f"native, {self.library.build}" if self.library else f"torch: {self.why}"


def find(limit: str, *, compiling: bool = True) -> Lookup:
    """The fastest build for this CPU, or the one that `limit` names; a missing library is compiled, if `compiling`."""
    if limit == "off":
        return Lookup(None, f"{LIMIT} is off")
    with _ONCE:  # threads of one process
        path = _path(compiling)
    if path is None and not compiling and compiler():
        return Lookup(None, "there is no native library yet; it is compiled at first use, if the compiler can")
    if path is None:
        return Lookup(None, "there is no native library, and no C compiler that can build it")
    return _open(path, limit)


@cache
def _path(compiling: bool) -> Path | None:
    """The library in the wheel or in the user's cache; an empty file in the cache means that compiling failed."""
    own = HOME / name_of()
    if own.exists():
        return own
    cc = compiler()
    if cc is None or not builds():
        return None
    try:
        cached = _cache() / name_of(cc, os.stat(cc).st_mtime_ns)
        if not cached.exists() and (not compiling or not compile_to(cached, cc)):
            if compiling:
                cached.touch()
            return None
        return cached if cached.stat().st_size else None
    except OSError:
        return None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwise" / "native"


@cache
def _open(path: Path, limit: str) -> Lookup:
    try:
        lib = CDLL(str(path))
        lib.headwise_runs.argtypes = (c_char_p,)
        able = [name for name in builds() if lib.headwise_runs(name.encode())]
        if limit and limit not in able:
            return Lookup(None, f"{LIMIT} is {limit!r}, but this CPU has: off, {', '.join(able)}")
        if not able:
            return Lookup(None, "this CPU has no fused multiply-add")
        return Lookup(_functions(lib, limit or able[-1]), "")
    except (OSError, AttributeError) as error:
        return Lookup(None, f"the native library can't be loaded: {error}")


def _functions(lib: CDLL, name: str) -> Library:
    layers, rates, numbers = (c_void_p, c_int32), c_void_p, c_void_p
    kinds: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "bytes": (c_int64, (*layers, c_int32, rates)),
        "train": (None, (c_void_p, c_int64, c_void_p)),
        "predict": (None, (*layers, numbers, c_int64, c_int32, numbers, c_void_p)),
        "kept": (c_int64, (*layers, c_int32)),
        "forward": (None, (*layers, numbers, c_int32, numbers, c_void_p)),
        "backward": (None, (numbers, c_int32, c_void_p)),
        "convolution_bytes": (c_int64, (c_void_p, c_int32, c_int32)),
        "convolve": (None, (c_void_p, numbers, c_int32, numbers, c_void_p)),
        "convolve_back": (None, (c_void_p, numbers, numbers, c_int32, numbers, c_float, c_void_p)),
    }
    functions: dict[str, Any] = {}
    for verb, (result, arguments) in kinds.items():
        function = functions[verb] = getattr(lib, f"headwise_{verb}_{name}")
        function.restype = result
        function.argtypes = arguments
    return Library(name, **functions)
