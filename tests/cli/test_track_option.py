"""``--track``: the same for run, resume and compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from saying import Headwise, assert_refused, small


def test_runs_are_tracked_where_they_are(headwise: Headwise, here: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'headwise[tensorboard]'")
    assert headwise(*small(), "--quiet", "--track", "tensorboard").code == 0
    assert (
        headwise(*small("compare", "fedavg", "fedper", out="both", draws="1"), "--quiet", "--track", "tensorboard").code
        == 0
    )
    folders = [p.parent.relative_to(here).as_posix() for p in sorted(here.rglob("tensorboard"))]
    assert folders == ["both/fedavg-d0-s0", "both/fedper-d0-s0", "runs/fedavg-synthetic-s0"]
    assert all(any(p.iterdir()) for p in here.rglob("tensorboard"))


@pytest.mark.parametrize("verb", [["run"], ["compare", "fedavg"]])
def test_unknown_trackers_cost_nothing(verb: list[str], headwise: Headwise, here: Path) -> None:
    said = headwise(*small(*verb), "--quiet", "--track", "wandbb")
    assert_refused(said, "track is 'wandbb'", "did you mean 'wandb'?")
    assert list(here.iterdir()) == []
