"""An observer that stores, after each evaluation, a small excerpt of what the method learned (`Method.shows`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..contract.method import Method
from ..disk.files import append_lines, failing_clearly
from ..engine.client.state import ClientState
from ..engine.events import Event, RoundEnded, RunStarted
from ..errors import RunError
from ..log.schema import was_evaluated
from ..params import Params
from ..records import Record
from .files import parse

WIDE = 32
"""columns kept of a matrix; more are averaged in groups"""
CLIENTS = 500
"""clients whose states are read; of more, an evenly spaced subset"""
VALUES = 6000
"""numbers kept of one quantity per round; of more, evenly spaced rows"""


class Diagnostics:
    """Appends a line to diagnostics.jsonl at each evaluation, if the method shows anything."""

    def __init__(self, folder: Path, method: Method[Any, Any, Any, Any]) -> None:
        self.path, self.shows = folder / "diagnostics.jsonl", method.shows

    def __call__(self, event: Event) -> None:
        """On resume, also drop the lines of rounds that will run again."""
        match event:
            case RunStarted(start=start) if self.path.exists():
                with failing_clearly(self.path):
                    os.truncate(self.path, _size_up_to(self.path, start))
            case RoundEnded(row, _, progress, states) if self.shows and was_evaluated(row):
                quantities = {name: _quantity(name, axes, progress.server, states) for name, axes in self.shows.items()}
                known = {name.split(".")[1]: q for name, q in quantities.items() if q}
                append_lines(self.path, [{"round": row["round"], "quantities": known}])
            case _:
                pass


def _quantity(name: str, axes: str, server: Record, states: Mapping[int, ClientState]) -> dict[str, Any] | None:
    """One field as plain numbers, from the server or from all clients that have it; None if no client does."""
    owner, field = name.split(".")
    if owner == "server":
        value = getattr(server, field)
        if isinstance(value, Tensor):
            return _plain(value, axes, range(len(value)))
        by_id: dict[int, Any] = value
    else:
        known = sorted(states)
        some = known[:: max(1, -(-len(known) // CLIENTS))]
        by_id = {c: value for c in some if (value := getattr(states[c].me, field)) is not None}
    if not by_id:
        return None
    return _plain(torch.stack([_matrix(v) for v in by_id.values()]), axes, list(by_id))


def _matrix(value: Tensor | Params) -> Tensor:
    """Of parameters, the last weights, a row per class: in a head, Linear or a 1x1 convolution."""
    if isinstance(value, Tensor):
        return value
    return [t for t in value.values() if t.dim() >= 2][-1].flatten(1)


def _plain(values: Tensor, axes: str, ids: range | list[int]) -> dict[str, Any]:
    values = values.detach().float().cpu()
    if values.dim() == 3 and values.shape[2] > WIDE:
        values = torch.stack([part.mean(2) for part in values.tensor_split(WIDE, dim=2)], dim=2)
    rows = max(1, VALUES // max(1, values[0].numel()))
    kept = torch.linspace(0, len(values) - 1, min(rows, len(values))).round().long()
    return {"axes": axes.split(), "ids": [ids[i] for i in kept.tolist()], "values": _rounded(values[kept].tolist())}


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else round(value, 4)


def _size_up_to(path: Path, t: int) -> int:
    """The file's size after round t, up to the first line that is damaged or torn."""
    size, data = 0, path.read_bytes()
    with suppress(RunError):  # at the first damaged line
        for line, row in zip(data.split(b"\n"), parse(path, data), strict=False):
            if row["round"] > t:
                break
            size += len(line) + 1
    return size
