"""No native kernel reads or writes outside its memory: random shapes under the compiler's sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native_chains import BUILDS

from headwise.engine.kernels.native import build

SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DRIVER = Path(__file__).with_name("native_driver.c")


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDS if build.compiler() else [])
def test_nothing_is_read_or_written_outside(name: str, tmp_path: Path) -> None:
    compiler = build.compiler()
    assert compiler is not None
    as_ = (f"-DHEADWISE_{name.upper()}", f"-DHEADWISE_BUILD={name}", "-D_POSIX_C_SOURCE=200112L", f"-I{build.HOME}")
    flags = (*build.COMMON, *build.builds()[name], *SANITIZERS, *as_)
    made = tmp_path / "driver"
    done = subprocess.run(
        [compiler, *flags, build.HOME / "chain.c", DRIVER, "-o", made, "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([made, "1", os.environ.get("HEADWISE_FUZZ", "300")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "chains without a fault" in ran.stdout
