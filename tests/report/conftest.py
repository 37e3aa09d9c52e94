from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Standalone and two methods, two seeds each: FedRep clearly wins; FedAvg's clients would be better off alone."""
    for method, end in (("standalone", 0.8), ("fedrep", 0.9), ("fedavg", 0.6)):
        for seed, shift in ((0, -0.01), (1, 0.01)):
            make_run(tmp_path / "runs" / f"{method}-{seed}", method, seed, end=end + shift)
    return tmp_path / "runs"
