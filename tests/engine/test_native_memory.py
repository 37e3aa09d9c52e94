"""Random shapes through the native kernels in C alone: nothing is read or written outside, and the bits are the same.

Under the compiler's sanitizers, under valgrind, and on an emulated ARM CPU, where these tools are installed
(Debian: valgrind, gcc-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from native_chains import BUILDS

from headwise.engine.kernels.native import library

pytestmark = pytest.mark.long

SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DRIVER = Path(__file__).with_name("native_driver.c")
CHAINS = os.environ.get("HEADWISE_FUZZ", "300")
FEW = str(int(CHAINS) // 10)
"""valgrind takes a hundred times as long"""
CC = library.compiler()
ARM_CC, ARM = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")


def driver(name: str, folder: Path, cc: str | None, flags: tuple[str, ...], *more: str) -> str:
    """The driver, compiled with this build's kernels."""
    assert cc is not None
    as_ = (f"-DHEADWISE_{name.upper()}", f"-DHEADWISE_BUILD={name}", "-D_POSIX_C_SOURCE=200112L", f"-I{library.HOME}")
    made = str(folder / f"driver-{name}")
    sources = str(library.HOME / "chain.c"), str(DRIVER)
    command = [cc, *library.COMMON, *flags, *more, *as_, *sources, "-o", made, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def digest(*command: str, chains: str = CHAINS) -> str:
    """Of all weights and outputs of so many random chains."""
    ran = subprocess.run([*command, "1", chains], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    said, _, found = ran.stdout.strip().partition(", digest ")
    assert said == f"{chains} chains without a fault"
    return found


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of this machine's simplest build."""
    return digest(driver(BUILDS[0], tmp_path_factory.mktemp("usual"), CC, library.builds()[BUILDS[0]]))


@pytest.mark.parametrize("name", BUILDS if CC else [])
def test_sanitizers_find_nothing(name: str, tmp_path: Path, usual: str) -> None:
    assert digest(driver(name, tmp_path, CC, library.builds()[name], *SANITIZERS)) == usual


@pytest.mark.parametrize("name", [b for b in BUILDS if b != "avx512"] if CC and shutil.which("valgrind") else [])
def test_valgrind_finds_nothing(name: str, tmp_path: Path) -> None:
    """No result depends on memory that was never set.

    Valgrind does not know AVX-512. Digests can't be compared: it computes -(a b) + c, `vfnmadd`, as -(a b - c), so that
    its zeros are negative where the CPU's are positive (valgrind 3.19: 54 of 729 sums of nine simple numbers).
    """
    made = driver(name, tmp_path, CC, library.builds()[name], "-g")
    assert digest("valgrind", "--quiet", "--error-exitcode=3", made, chains=FEW)


@pytest.mark.parametrize("name", library.ARM if CC and BUILDS and ARM_CC and ARM else [])
def test_an_emulated_arm_cpu_computes_the_same_bits(name: str, tmp_path: Path, usual: str) -> None:
    assert digest(str(ARM), driver(name, tmp_path, ARM_CC, library.ARM[name], "-static")) == usual
