"""Memory layout, on which the last bits of a result can depend, and memory limits.

On many CPUs a matrix product is rounded differently if an operand begins 4 bytes further on. So everything a client
computes with begins on a cache line, wherever it comes from: a row of the common data, a message, a checkpoint, shared
memory.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .errors import ConfigError

LINE = 64
"""bytes of a cache line; torch aligns every new tensor to one"""


def align(t: Tensor) -> Tensor:
    """The tensor itself if it begins on a cache line, else a copy that does."""
    return t if address(t) % LINE == 0 else t.clone()


def settle(t: Tensor) -> Tensor:
    """The tensor itself if it is laid out like one read from bytes, else a copy that is."""
    return align(t) if t.is_contiguous() else t.clone(memory_format=torch.contiguous_format)


def address(t: Tensor) -> int:
    """The tensor's memory address; `data_ptr` would force the copy of a copy-on-write tensor."""
    start = torch._C._data_address(t)  # pyright: ignore[reportAttributeAccessIssue]
    return start + t.storage_offset() * t.element_size()


def check_memory(needed: int, what: str) -> None:
    """Refuse what this machine could never hold: allocating it can take down the machine, not only this process."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        sizes = f"about {needed / 2**30:,.0f} GB, but this machine has {available / 2**30:,.0f} GB"
        raise ConfigError(f"{what} needs {sizes}: choose something smaller.")
