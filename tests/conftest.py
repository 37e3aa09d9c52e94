"""What holds for every test: nothing is left to chance, and what takes long begins first."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from waiting import slow_first

# a busy machine is no failure, and what is generated is the same in every run; `make fuzz` draws anew each time
settings.register_profile(
    "headwise",
    deadline=None,
    derandomize="HEADWISE_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("headwise")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the first fixture, so that what a shared one draws does not depend on the tests before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest: while a minute that begins last is waited for, other workers are idle."""
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = slow_first(slow, rest, workers)
