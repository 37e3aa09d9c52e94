"""Predicts the samples in files and writes the results, batch by batch: tables, or masks as PNG or NPZ files."""

from __future__ import annotations

import colorsys
import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..disk.files import explain_write_errors, new_folder, replace_file, write_json
from ..disk.jsontext import csv_cell, to_json
from ..errors import ConfigError, DataError, explain_missing
from ..tasks.registry import kind_of
from .model import TrainedModel
from .samples import Batch, place_of, read_batches

MOST = 256
"""classes that a PNG's palette has room for"""
CLASSES = "classes.json"

Write = Callable[[list[list[Any]]], None]
"""appends these columns"""
Progress = Callable[[int], None]
"""called with the number of samples so far"""


def predict_file(model: TrainedModel, data: Path, out: Path, *, on_progress: Progress, client: str = "") -> int:
    """Write a row for each sample: its place, its prediction and probabilities; or masks. Return how many."""
    if kind_of(model.card["task"]).per_pixel:
        return _predict_masks(model, data, out, on_progress, client)
    kind = WRITERS.get(out.suffix.lower())
    if kind is None:
        raise ConfigError(f"-o is {str(out)!r}, but must end in {', '.join(WRITERS)}.")
    has_clients = data.suffix.lower() == ".toml"  # then rows of several files may have the same number
    head = ["sample", *(["client"] if has_clients else []), *_name_columns(model)]
    n = 0
    with replace_file(out) as file, kind(file, head) as write:
        for batch in read_batches(data, model, client=client):
            write([batch.names, *([batch.clients] if has_clients else []), *_columns(model, batch)])
            n += len(batch.names)
            on_progress(n)
    return n


def _columns(model: TrainedModel, batch: Batch) -> list[list[Any]]:
    prediction = model.infer(batch.raw)
    labels = model.decide(prediction)
    kind = kind_of(model.card["task"])
    if labels.dtype.kind == "M":  # as Python's objects, they would be nanoseconds
        names = dict(zip(model.classes_, np.datetime_as_string(model.classes_, unit="auto"), strict=True))
        labels = np.array([names[label] for label in labels])
    columns = np.atleast_2d(labels.T).tolist()
    return [*columns, *([] if kind.quantitative else prediction.probabilities.T.tolist())]


def _name_columns(model: TrainedModel) -> list[str]:
    """Names of columns: one prediction, or one for each label or quantity; then probabilities, where there are any."""
    kind = kind_of(model.card["task"])
    probabilities = [] if kind.quantitative else [f"p({name})" for name in model.classes]
    return [*(["prediction"] if kind.one_class else model.classes), *probabilities]


@contextmanager
def _csv(file: IO[bytes], head: list[str]) -> Iterator[Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(map(csv_cell, head))
    yield lambda columns: writer.writerows(map(csv_cell, row) for row in zip(*columns, strict=True))
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
    with explain_missing("-o is Parquet, which needs pyarrow: pip install 'headwise[tables]'."):
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    writers: list[Any] = []

    def write(columns: list[list[Any]]) -> None:
        table = pa.table([pa.array(c) for c in columns], names=head)
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema))
        writers[0].write_table(table)

    yield write
    for writer in writers:
        writer.close()


WRITERS = {".csv": _csv, ".json": _json, ".parquet": _parquet}


def _predict_masks(model: TrainedModel, data: Path, out: Path, on_progress: Progress, client: str) -> int:
    """Write the class of each pixel of each sample; return how many samples there are."""
    if out.suffix.lower() == ".npz":
        return _write_npz(model, data, out, on_progress, client)
    if out.suffix:
        raise ConfigError(f"-o is {str(out)!r}, but masks need a folder for PNG files, or a file that ends in .npz.")
    return _write_pngs(model, data, out, on_progress, client)


def _write_npz(model: TrainedModel, data: Path, out: Path, on_progress: Progress, client: str) -> int:
    """`masks` [n, height, width] as the model has them, the name of each in `samples`, and `classes`."""
    root = place_of(data, model)
    names = list[str]()
    masks = list[NDArray[Any]]()
    with replace_file(out) as file:
        for batch in read_batches(data, model, client=client):
            names += [_choose_place(root, batch, name).as_posix() for name in batch.names]
            masks.append(_masks(model, batch))
            on_progress(len(names))
        np.savez_compressed(file, samples=names, masks=np.concatenate(masks), classes=list(model.classes))
    return len(names)


def _write_pngs(model: TrainedModel, data: Path, out: Path, on_progress: Progress, client: str) -> int:
    """A file for each sample, named like it; those of image files have the size of their image."""
    with explain_missing("masks are written as PNG, which needs pillow: pip install 'headwise[images]'."):
        from PIL import Image
    if len(model.classes) > MOST:
        raise ConfigError(f"-o is {str(out)!r}, but a PNG has at most {MOST} classes: choose a file that ends in .npz.")
    root = place_of(data, model)
    colours = _palette(len(model.classes))
    n = 0
    with new_folder(out) as draft:
        for batch in read_batches(data, model, client=client):
            for name, mask in zip(batch.names, _masks(model, batch), strict=True):
                picture = Image.fromarray(mask).convert("L")
                if _are_images(batch):
                    with Image.open(name) as original:
                        picture = picture.resize(original.size, Image.Resampling.NEAREST)
                picture.putpalette(colours)
                path = draft / _choose_place(root, batch, name).with_suffix(".png")
                if path.exists():
                    raise DataError(f"{name} and another image of this name would have the same mask {path.name}.")
                with explain_write_errors(out / path.relative_to(draft)):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    picture.save(path)
            n += len(batch.names)
            on_progress(n)
        write_json(draft / CLASSES, list(model.classes))
    return n


def _masks(model: TrainedModel, batch: Batch) -> NDArray[Any]:
    return model.predict(batch.raw).astype(np.uint8 if len(model.classes) <= MOST else np.uint16)


def _choose_place(root: Path, batch: Batch, name: Any) -> Path:
    """The path of a sample's mask: that of its image within the data, without a folder `images`; or else its number."""
    if _are_images(batch):
        inside = Path(name).relative_to(root if root.is_dir() else root.parent)
        return Path(*(part for part in inside.parts if part != "images"))
    inside = batch.file.relative_to(root).with_suffix("") if batch.file != root else Path()
    return inside / str(name)


def _are_images(batch: Batch) -> bool:
    return not isinstance(batch.raw, np.ndarray)


def _palette(classes: int) -> list[int]:
    """Colours that differ, so that a mask can be looked at: class 0 is black."""
    hues = [colorsys.hsv_to_rgb(0.618034 * k % 1, 0.75, 0.95) for k in range(1, classes)]
    return [0, 0, 0, *(round(255 * part) for colour in hues for part in colour)]
