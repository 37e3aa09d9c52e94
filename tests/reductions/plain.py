"""Plans whose steps are taken one by one: two methods agree to the bit only where their arithmetic is the same."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.testing import toy

toy_plan = partial(toy.toy_plan, kernels="plain")


def server(recorder: toy.Recorder) -> Any:
    """The server's last state."""
    return recorder.ended[-1].progress.server


def states(recorder: toy.Recorder) -> dict[int, Any]:
    """The clients' last ones."""
    return {c: s.me for c, s in recorder.ended[-1].states.items()}
