"""The same bits with every instruction set of this CPU: libraries choose their kernels by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.engine.kernels.native.library import LIMIT

SETTINGS = {
    "what it chooses": {},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL's slowest": {"MKL_CBWR": "COMPATIBLE"},
    "AVX2 as Intel has it": {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""one variable per library that may be in use; a CPU without AVX2 ignores them"""


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_group_worker_and_site_do_not_show_in_the_bits(settings: dict[str, str]) -> None:
    script = Path(__file__).with_name("awkward_shapes.py")
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": "1", LIMIT: "off"}  # test_native_bits.py tries that
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "federations agree" in done.stdout
