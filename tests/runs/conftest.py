from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from killed_runs import bits
from small_runs import experiment


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of five rounds."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    hw.run(experiment(), folder)
    return folder


@pytest.fixture(scope="session")
def wanted(undisturbed: Path) -> dict[str, Any]:
    return bits(undisturbed)
