"""Predictions of files into files, batch by batch."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..disk.files import replacing
from ..disk.jsontext import to_json
from ..errors import ConfigError
from .masks import predict_masks
from .model import TrainedModel
from .samples import Batch, read

Write = Callable[[list[list[Any]]], None]
"""appends these columns"""


def predict_file(model: TrainedModel, data: Path, out: Path, *, told: Callable[[int], None], client: str = "") -> int:
    """Write a row for each sample: its place, what is predicted, and probabilities; or masks. Return how many."""
    if model.card["task"] == "segmentation":
        return predict_masks(model, data, out, told, client)
    kind = WRITERS.get(out.suffix.lower())
    if kind is None:
        raise ConfigError(f"-o is {str(out)!r}, but must end in {', '.join(WRITERS)}.")
    whose = data.suffix.lower() == ".toml"  # then rows of several files may have the same number
    n, head = 0, ["sample", *(["client"] if whose else []), *_head(model)]
    with replacing(out) as file, kind(file, head) as write:
        for batch in read(data, model, client=client):
            write([batch.names, *([batch.clients] if whose else []), *_columns(model, batch)])
            n += len(batch.names)
            told(n)
    return n


def _columns(model: TrainedModel, batch: Batch) -> list[list[Any]]:
    said = model.say(batch.raw)
    task, found = model.card["task"], model.named(said)
    several = [found.tolist()] if task == "classification" else found.T.tolist()
    return [*several, *([] if task == "regression" else said.probabilities.T.tolist())]


def _head(model: TrainedModel) -> list[str]:
    """Names of columns: one prediction, or one for each label or quantity; then probabilities, where there are any."""
    task, names = model.card["task"], model.classes
    likely = [] if task == "regression" else [f"p({name})" for name in names]
    return [*(["prediction"] if task == "classification" else names), *likely]


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
