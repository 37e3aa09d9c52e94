"""Predictions of files into files, batch by batch."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..disk.files import failing_clearly
from ..disk.jsontext import to_json
from ..disk.paths import behind_links, draft_of
from ..errors import ConfigError
from .model import TrainedModel
from .samples import Batch, read

Write = Callable[[list[list[Any]]], None]
"""appends these columns"""


def predict_file(model: TrainedModel, data: Path, out: Path, *, told: Callable[[int], None], client: str = "") -> int:
    """Write a row for each sample: its place, what is predicted, and probabilities; return how many."""
    kind = WRITERS.get(out.suffix.lower())
    if kind is None:
        raise ConfigError(f"-o is {str(out)!r}, but must end in {', '.join(WRITERS)}.")
    n, head = 0, ["sample", *_head(model)]
    with _replaced(out) as file, kind(file, head) as write:
        for batch in read(data, model, client=client):
            write(_columns(model, batch))
            n += len(batch.names)
            told(n)
    return n


def _columns(model: TrainedModel, batch: Batch) -> list[list[Any]]:
    said = model.say(batch.raw)
    task, found = model.card["task"], model.named(said)
    several = [found.tolist()] if task == "classification" else found.T.tolist()
    return [batch.names, *several, *([] if task == "regression" else said.probabilities.T.tolist())]


def _head(model: TrainedModel) -> list[str]:
    """Names of columns: one prediction, or one for each label or quantity; then probabilities, where there are any."""
    task, names = model.card["task"], model.classes
    if task == "segmentation":
        raise ConfigError("task is 'segmentation', whose masks are no rows of a table: use predict from Python.")
    likely = [] if task == "regression" else [f"p({name})" for name in names]
    return [*(["prediction"] if task == "classification" else names), *likely]


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all."""
    target = behind_links(path)
    draft = draft_of(target)
    try:
        with failing_clearly(path), draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with failing_clearly(path):
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _csv(file: IO[bytes], head: list[str]) -> Iterator[Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(head)
    yield lambda columns: writer.writerows(zip(*columns, strict=True))
    text.flush()
    text.detach()


@contextmanager
def _json(file: IO[bytes], head: list[str]) -> Iterator[Write]:
    """A list of objects, one in a line."""
    first = [True]

    def write(columns: list[list[Any]]) -> None:
        for row in zip(*columns, strict=True):
            file.write(b"[\n" if first[0] else b",\n")
            first[0] = False
            file.write(to_json(dict(zip(head, row, strict=True))).encode())

    yield write
    file.write(b"[]\n" if first[0] else b"\n]\n")


@contextmanager
def _parquet(file: IO[bytes], head: list[str]) -> Iterator[Write]:
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("-o is Parquet, which needs pyarrow: pip install 'headwise[tables]'.") from None
    made: list[Any] = []

    def write(columns: list[list[Any]]) -> None:
        table = pa.table([pa.array(c) for c in columns], names=head)
        if not made:
            made.append(parquet.ParquetWriter(file, table.schema))
        made[0].write_table(table)

    yield write
    for writer in made:
        writer.close()


WRITERS = {".csv": _csv, ".json": _json, ".parquet": _parquet}
