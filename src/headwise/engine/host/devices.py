"""Where tensors live. All the engine knows about GPUs is here; between rounds, records are in main memory."""

from __future__ import annotations

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...data.federated import Samples
from ...errors import ConfigError
from ...memory import settle

T = TypeVar("T", bound="Tensor | nn.Module")


def check_device(device: str) -> None:
    """Raise if this machine does not have the device."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's warnings about old devices
            torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(f"engine.device is {device!r}, which this machine does not have.") from error


def device_of(worker: int, device: str) -> str:
    """The device of this worker: with ``cuda``, workers share all GPUs evenly."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device


def move_to(value: T, device: str) -> T:
    """Move to this device; for the CPU, return as is without a check, which saves time."""
    return value if device == "cpu" else value.to(device)  # pyright: ignore[reportReturnType]


def samples_on(samples: Samples, device: str) -> Samples:
    return samples if device == "cpu" else Samples(samples.x.to(device), samples.y.to(device))


def home(t: Tensor) -> Tensor:
    """The tensor in main memory, detached, and laid out as if read from a message."""
    return settle(t if t.is_cpu and not t.requires_grad else t.detach().cpu())
