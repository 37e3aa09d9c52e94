"""How numbers lie in memory, which the last bits of what is computed from them may depend on; and whether they fit.

On many CPUs a product of matrices is rounded otherwise where an operand begins 4 bytes further on. So whatever a
client's numbers are computed from begins on a cache line, wherever it comes from: a row of everybody's data, a
message, a checkpoint, shared memory.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .errors import ConfigError

LINE = 64
"""bytes of a cache line, on which torch begins every tensor that it makes"""


def aligned(t: Tensor) -> Tensor:
    """The tensor itself if it begins on a cache line, else a copy that does."""
    return t if address(t) % LINE == 0 else t.clone()


def settled(t: Tensor) -> Tensor:
    """The tensor itself if it lies as one that was read from bytes, else a copy that does."""
    return aligned(t) if t.is_contiguous() else t.clone(memory_format=torch.contiguous_format)


def address(t: Tensor) -> int:
    """Where in memory it begins; `data_ptr` would make a copy of a tensor that waits for its first change."""
    start = torch._C._data_address(t)  # pyright: ignore[reportAttributeAccessIssue]
    return start + t.storage_offset() * t.element_size()


def check_memory(needed: int, what: str) -> None:
    """Refuse what this machine could never hold: asking for it can take the machine down, not only this process."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = f"about {needed / 2**30:,.0f} GB, but this machine has {there / 2**30:,.0f} GB"
        raise ConfigError(f"{what} needs {sizes}: choose something smaller.")
