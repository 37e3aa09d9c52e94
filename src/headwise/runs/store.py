"""An observer that writes each round into the run's folder: a line per round, a line per client, a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract.method import Method, RecordTypes
from ..disk.files import (
    append_lines,
    digest,
    explain_write_errors,
    lock_folder,
    read_bytes,
    seal,
    write_bytes,
    write_json,
)
from ..disk.jsontext import to_json
from ..engine.client.state import ClientState, States
from ..engine.events import Event, NewClients, Progress, RoundEnded, RunEnded, RunStarted, StartMeasured
from ..errors import RunError
from ..log.schema import PartScores, restore_score, was_evaluated
from ..params import Params
from ..records import Record
from .checkpoint import Checkpoint, Checkpoints
from .files import Extent, Growing, parse
from .manifest import INPUTS
from .query import NEW_CLIENTS, Run

LINES = ("rounds.jsonl", "clients.jsonl", "diagnostics.jsonl")
"""the files whose extents a checkpoint stores: resuming cuts them back to these"""
EARLY = (INPUTS, "lock", "partition.json", ".partition.json.tmp", ".manifest.json.tmp")
"""files that a run leaves if it is killed before it writes its manifest: a folder with only these counts as empty"""


class Start(NamedTuple):
    """Where a session begins: after the last complete round, or at the beginning if `progress` is None."""

    progress: Progress | None
    states: States


class RunStore:
    """A crash at any moment loses at most the round in flight."""

    def __init__(self, folder: Path, types: RecordTypes, *, keep_best: bool = False) -> None:
        self.folder = folder
        self.types = types
        self.keep_best = keep_best
        self._checkpoints = Checkpoints(folder / "checkpoint", types)
        self._lines = {name: Growing(folder / name) for name in LINES}

    def __call__(self, event: Event) -> None:
        match event:
            case RoundEnded(row, clients, progress, states, who):
                append_lines(self.folder / "rounds.jsonl", [row])
                append_lines(self.folder / "clients.jsonl", clients)
                changed = {c: data for c in who if (data := states.encode(c)) is not None}
                best = self.keep_best and was_evaluated(row) and progress.waited == 0 and progress.best is not None
                self._checkpoints.save(progress, changed, self._extents(), best=best)
                states.settle(sum(map(len, changed.values())))
            case NewClients(scores):
                write_json(self.folder / NEW_CLIENTS, seal(scores))
            case StartMeasured(row, clients):  # without a checkpoint: a crash before the first one measures again
                append_lines(self.folder / "rounds.jsonl", [row])
                append_lines(self.folder / "clients.jsonl", clients)
            case RunEnded(reason):
                lines = {name: extent._asdict() for name, extent in self._extents().items()}
                summary = Run(self.folder).summary()
                write_json(self.folder / "result.json", seal({"ended": reason, **summary, "lines": lines}))
            case _:
                pass

    def begin(self, progress: Progress, states: Mapping[int, bytes]) -> None:
        """Store where the first round starts from, if that is not the beginning."""
        self._checkpoints.save(progress, states, dict.fromkeys(LINES, Extent(0, digest(b""))))

    def load(self) -> Start:
        """Find where to continue, and remove result.json and the lines of incomplete rounds."""
        checkpoint = self._checkpoints.load(self._check_lines)
        if checkpoint is None and (lines := len(Run(self.folder).rounds)) > 1:
            raise RunError(f"{self.folder} has {lines} rounds but no checkpoint to resume from: start a new run.")
        held = checkpoint.lines if checkpoint else dict.fromkeys(LINES, Extent(0, digest(b"")))
        with explain_write_errors(self.folder / "result.json"):
            (self.folder / "result.json").unlink(missing_ok=True)
        for name, extent in held.items():
            _cut(self.folder / name, extent.size)
        _cut(self.folder / "sites.jsonl", read_bytes(self.folder / "sites.jsonl", absent=b"").rfind(b"\n") + 1)
        self._checkpoints.tidy()
        if checkpoint is None:
            return Start(None, self._checkpoints.states())
        path = self.folder / "clients.jsonl"
        posts = {line["client"]: line["post"] for line in parse(path, read_bytes(path, absent=b"")) if "post" in line}
        last: dict[int, PartScores] = {
            c: {"test": restore_score(p["test"]), "val": restore_score(p["val"])} for c, p in posts.items()
        }
        return Start(replace(checkpoint.progress, last=last), checkpoint.states)

    def _check_lines(self, checkpoint: Checkpoint) -> None:
        """Raise `RunError` if a line file lacks what it held when this checkpoint was written."""
        t = checkpoint.progress.t
        for name in LINES:
            path = self.folder / name
            if (extent := checkpoint.lines.get(name)) is not None:
                data = read_bytes(path, absent=b"")
                extent.check(path, data, f"round {t}")
                rows = list(parse(path, data[: extent.size])) if name == "rounds.jsonl" else []
                if name == "rounds.jsonl" and [row["round"] for row in rows if row["round"]] != list(range(1, t + 1)):
                    raise RunError(f"{path} is damaged: it must hold rounds 1 to {t}.")

    def _extents(self) -> dict[str, Extent]:
        return {name: extent for name, file in self._lines.items() if (extent := file.extent())}

    def close(self) -> None:
        self._checkpoints.close()


def _cut(path: Path, size: int) -> None:
    if path.exists():
        with explain_write_errors(path):
            os.truncate(path, size)


@contextmanager
def new_run(folder: Path, manifest: dict[str, Any], partition: dict[str, Any]) -> Iterator[None]:
    """Create a new run's folder with its manifest and partition, and hold its lock.

    The lock comes first: if two processes start in one folder, one of them writes nothing. A folder that holds anything
    else is refused and left unchanged.
    """
    refuse_if_taken(folder)
    with explain_write_errors(folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        with lock_folder(folder, make=True):
            refuse_if_taken(folder)  # another process may have started here meanwhile, or even finished
            data = to_json(partition).encode()
            try:
                write_bytes(folder / "partition.json", data)
                write_json(folder / "manifest.json", seal({**manifest, "partition_digest": digest(data)}))
                del data, partition  # large with very many clients
            except RunError:
                with suppress(OSError):
                    (folder / "partition.json").unlink(missing_ok=True)
                    (folder / "lock").unlink()
                raise
            yield
    finally:
        for path in missing:  # removes only empty folders: the run could not start there
            with suppress(OSError):
                path.rmdir()


def mend_partition(folder: Path, partition: dict[str, Any]) -> None:
    """Restore a damaged partition.json, if the data still gives the partition that the run began with."""
    run = Run(folder)
    data = to_json(partition).encode()
    try:
        _ = run.partition
    except RunError:
        if digest(data) == run.manifest.get("partition_digest"):
            write_bytes(folder / "partition.json", data)


def refuse_if_taken(folder: Path) -> None:
    """Raise `RunError` if anything but the beginning of a run is in this folder."""
    with explain_write_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(p.name not in EARLY for p in folder.iterdir())):
            raise RunError(
                f"{folder} exists already and is not empty: choose another folder, or continue it with resume."
            )


WIDE = 32
"""columns kept of a matrix; more are averaged in groups"""
CLIENTS = 500
"""clients whose states are read; of more, an evenly spaced subset"""
VALUES = 6000
"""numbers kept of one quantity per round; of more, evenly spaced rows"""


class Diagnostics:
    """Appends a line to diagnostics.jsonl at each evaluation, if the method shows anything."""

    def __init__(self, folder: Path, method: Method[Any, Any, Any, Any]) -> None:
        self.path = folder / "diagnostics.jsonl"
        self.shows = method.shows

    def __call__(self, event: Event) -> None:
        """On resume, also drop the lines of rounds that will run again."""
        match event:
            case RunStarted(start=start) if self.path.exists():
                with explain_write_errors(self.path):
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
            return _to_plain(value, axes, range(len(value)))
        by_id: dict[int, Any] = value
    else:
        known = sorted(states)
        some = known[:: max(1, -(-len(known) // CLIENTS))]
        by_id = {c: value for c in some if (value := getattr(states[c].me, field)) is not None}
    if not by_id:
        return None
    return _to_plain(torch.stack([_matrix(v) for v in by_id.values()]), axes, list(by_id))


def _matrix(value: Tensor | Params) -> Tensor:
    """Of parameters, the last weights, a row per class: in a head, Linear or a 1x1 convolution."""
    if isinstance(value, Tensor):
        return value
    return [t for t in value.values() if t.dim() >= 2][-1].flatten(1)


def _to_plain(values: Tensor, axes: str, ids: range | list[int]) -> dict[str, Any]:
    values = values.detach().float().cpu()
    if values.dim() == 3 and values.shape[2] > WIDE:
        values = torch.stack([part.mean(2) for part in values.tensor_split(WIDE, dim=2)], dim=2)
    rows = max(1, VALUES // max(1, values[0].numel()))
    kept = torch.linspace(0, len(values) - 1, min(rows, len(values))).round().long()
    return {"axes": axes.split(), "ids": [ids[i] for i in kept.tolist()], "values": _round(values[kept].tolist())}


def _round(value: Any) -> Any:
    return [_round(v) for v in value] if isinstance(value, list) else round(value, 4)


def _size_up_to(path: Path, t: int) -> int:
    """The file's size after round t, up to the first line that is damaged or torn."""
    size = 0
    data = path.read_bytes()
    with suppress(RunError):  # at the first damaged line
        for line, row in zip(data.split(b"\n"), parse(path, data), strict=False):
            if row["round"] > t:
                break
            size += len(line) + 1
    return size
