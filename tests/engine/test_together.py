"""Clients side by side: what they ask for at the same time is done together, with no visible effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from headwise.engine.host.clock import Clock
from headwise.engine.kernels.together import Work, ask, side_by_side

LOG: list[list[int]] = []


@dataclass(frozen=True)
class Square(Work):
    section: ClassVar[str] = "squares"

    value: int
    kind: str = ""
    found: list[int] = field(default_factory=list[int])

    @property
    def key(self) -> str:
        return self.kind

    def together(self, others: Sequence[Any]) -> None:
        torch.rand(7)  # a client may draw here
        LOG.append([w.value for w in (self, *others)])
        for w in (self, *others):
            w.found.append(w.value**2)


def square(value: int, kind: str = "") -> int:
    work = Square(value, kind)
    ask(work)
    return work.found[0]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    LOG.clear()
    with torch.set_grad_enabled(True), torch.random.fork_rng(devices=[]):
        yield


def test_alone_it_is_done_at_once() -> None:
    assert square(3) == 9
    assert LOG == [[3]]


def test_what_is_asked_for_at_the_same_time_is_done_together() -> None:
    """A client that asks more often continues with those that are left."""

    def client(times: int) -> list[int]:
        return [square(10 * times + k) for k in range(times)]

    found = side_by_side([lambda n=n: client(n) for n in (2, 0, 3, 1)], Clock())
    assert found == [[400, 441], [], [900, 961, 1024], [100]]
    assert LOG == [[20, 30, 10], [21, 31], [32]]


def test_only_equal_keys_are_done_together() -> None:
    side_by_side([lambda n=n: square(n, "odd" if n % 2 else "even") for n in range(4)], Clock())
    assert LOG == [[0, 2], [1, 3]]


def test_everybody_goes_on_with_its_own_generator_and_mode() -> None:
    def client(seed: int) -> tuple[list[float], bool]:
        torch.default_generator.manual_seed(seed)
        first = torch.rand(()).item()
        with torch.set_grad_enabled(seed != 1):
            square(seed)
            return [first, torch.rand(()).item()], torch.is_grad_enabled()

    together = side_by_side([lambda s=s: client(s) for s in range(3)], Clock())
    alone = [side_by_side([lambda s=s: client(s)], Clock())[0] for s in range(3)]
    assert together == alone
    assert [grad for _, grad in together] == [True, False, True]
    assert torch.is_grad_enabled()


def test_who_begins_while_another_sleeps_begins_as_everybody() -> None:
    def sleeps() -> bool:
        with torch.no_grad():
            square(1)
        return torch.is_grad_enabled()

    assert side_by_side([sleeps, torch.is_grad_enabled], Clock()) == [True, True]


def test_an_exception_reaches_the_one_who_asked_for_the_tasks() -> None:
    ended: list[str] = []

    def waits() -> None:
        try:
            square(1)
        finally:
            ended.append("others are ended")

    def fails() -> None:
        raise ZeroDivisionError("by hand")

    with pytest.raises(ZeroDivisionError, match="by hand"):
        side_by_side([waits, fails], Clock())
    assert ended == ["others are ended"]


def test_time_is_charged_to_what_it_was_spent_on() -> None:
    clock = Clock()
    clock.start()
    with clock("data"):
        side_by_side([lambda n=n: square(n) for n in range(3)], clock)
        assert clock.section == "data"
    clock.stop()
    assert set(clock.seconds) == {"method", "data", "squares"}
    assert all(spent > 0 for spent in clock.seconds.values())
