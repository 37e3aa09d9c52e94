"""Where tensors begin in memory: data from outside is moved to a cache line, anything else is not copied."""

from __future__ import annotations

import pytest
import torch

from headwise.authoring import Params, Record
from headwise.memory import LINE, address, align, settle
from headwise.records import decode, encode

OFFSETS = range(16)
"""in floats: every four-byte offset in a cache line"""


def at(offset: int, *shape: int) -> torch.Tensor:
    """Random numbers that begin `offset` floats after a cache line."""
    size = int(torch.Size(shape).numel())
    return torch.randn(size + 16)[offset : offset + size].view(shape)


@pytest.mark.parametrize("offset", OFFSETS)
def test_what_begins_elsewhere_is_copied(offset: int) -> None:
    t = at(offset, 3, 5)
    for moved in (align(t), settle(t)):
        assert address(moved) % LINE == 0
        assert torch.equal(moved, t)
        assert (moved is t) is (offset == 0)


def test_the_layout_is_kept_or_made_ordinary() -> None:
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert settle(images).is_contiguous() and not images.is_contiguous()
    behind = torch.randn(3, 3, 5, 5).contiguous(memory_format=torch.channels_last)[1:]
    assert address(behind) % LINE
    assert align(behind).stride() == behind.stride()
    assert torch.equal(settle(behind), behind)


def test_a_copy_that_waits_for_its_first_change_goes_on_waiting() -> None:
    t = torch._lazy_clone(torch.randn(5))
    assert settle(t) is t
    assert torch._C._is_cow_tensor(t)


class Two(Record):
    w: Params
    name: str


@pytest.mark.parametrize("length", OFFSETS)
def test_a_message_is_read_to_cache_lines(length: int) -> None:
    """The length of the header, and so where the numbers begin, depends on the names."""
    sent = Two(Params({"a" * (length + 1): torch.randn(3), "b": torch.randn(7, 3), "c": torch.randn(1)}), "x" * length)
    for t in decode(Two, encode(sent)).w.values():
        assert address(t) % LINE == 0
