"""How bytes go bad, and how often we try: a fixed count with the tests, as long as you like with `make fuzz`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

fuzzed = settings(
    max_examples=int(os.environ.get("HEADWISE_FUZZ", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


T = TypeVar("T")


def try_call(call: Callable[[], T], kind: type[Exception], part: str = "") -> T | None:
    """What the call returns, or None if it refused in one sentence of this kind that names `part`."""
    try:
        return call()
    except kind as refused:
        said = str(refused)
    assert said
    assert part in said
    return None


@st.composite
def damaged(draw: Any, good: bytes) -> bytes:
    """These bytes with a few changed, a piece cut out, doubled, or replaced by anything."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 24))
        match draw(st.sampled_from(["turn", "cut", "double", "put", "end"])):
            case "turn" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + size]
            case "double":
                data[at:at] = data[at : at + size]
            case "put":
                data[at : at + size] = draw(st.binary(max_size=24))
            case _:
                del data[at:]
    return bytes(data)
