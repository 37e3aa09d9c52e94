"""What `guided.py` calls with the bytes of a user's own data, and good bytes to begin with."""

from __future__ import annotations

import io
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from headwise.data.own.arrays import load_npz
from headwise.data.own.check import check
from headwise.data.own.description import description_from, read_description
from headwise.data.own.findings import raise_errors
from headwise.data.own.guess import guess_description
from headwise.data.own.images import open_image
from headwise.data.own.peers import import_fl_bench, import_pfllib
from headwise.data.preprocessing import sums_from_json, sums_to_json
from headwise.data.sources import ag_news, cifar10, office_caltech10
from headwise.data.sources.mnist import read_idx
from headwise.engine.sampling import read_trace
from headwise.errors import ConfigError, DataError, RunError
from headwise.league.cells import read_csv
from headwise.league.standings import COLUMNS
from headwise.papers.figure import _read_curve

DESCRIPTION = b"""format = "csv"
path = "t.csv"
client = "who"
target = "ill"
classes = ["no", "yes"]
[features]
number = ["age"]
category = ["sex"]
[split]
by = "ratio"
ratio = "8:1:1"
[preprocess]
fill = "zero"
"""
TABLE = b"who,age,sex,ill\nva,61,f,yes\nva,44,m,no\nrome,50,f,no\nrome,,m,yes\n"
LINES = b'{"who": "va", "age": 61, "sex": "f", "ill": "yes"}\n{"who": "b", "age": null, "sex": "m", "ill": "no"}\n'
SUMS = (
    b'{"of": {"form": "table", "shape": [2], "options": {}, "columns": [{"name": "age", "kind": "number", "width": 1}, '
    b'{"name": "sex", "kind": "category", "width": 1}]}, "n": 4, "numbers": [[3], [155], [8157]], '
    b'"values": {"sex": {"f": 2, "m": 2}}, "targets": [[4], [2], [2]]}'
)


def descriptions(data: bytes, room: Path) -> None:
    """A data.toml beside a good table."""
    (room / "t.csv").write_bytes(TABLE)
    (room / "data.toml").write_bytes(data)
    with suppress(ConfigError, DataError):
        d = read_description(room / "data.toml")
        if d.place == room / "t.csv":  # bytes may name any other file of this machine
            check(d)


def tables(data: bytes, room: Path) -> None:
    """A CSV or JSONL file: described by a data.toml, and guessed."""
    form = "jsonl" if data[:1] == b"{" else "csv"
    path = room / f"t.{form}"
    path.write_bytes(data)
    features = {"number": ["age"], "category": ["sex"]}
    plain = {"format": form, "path": path.name, "client": "who", "target": "ill", "features": features}
    with suppress(ConfigError, DataError):
        check(description_from(plain, room))
    with suppress(ConfigError, DataError):
        check(guess_description(path, "who", ["ill"]).description)


def arrays(data: bytes, room: Path) -> None:
    path = room / "a.npz"
    path.write_bytes(data)
    with suppress(DataError):
        load_npz(path)


def images(data: bytes, room: Path) -> None:
    path = room / "a.png"
    path.write_bytes(data)
    with suppress(DataError):
        open_image(path, raise_errors).convert("RGB")


def sums(data: bytes, room: Path) -> None:
    with suppress(DataError, UnicodeDecodeError):
        read = sums_from_json(data.decode())
        assert sums_to_json(*sums_from_json(sums_to_json(*read))) == sums_to_json(*read)


def clients(data: bytes, room: Path) -> None:
    """A client's file of PFLlib, or FL-bench's partition."""
    folder = room / ("synthetic" if data[:2] == b"\x80\x04" else "MNIST")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(room / "imported", ignore_errors=True)
    (folder / "train").mkdir(parents=True)
    (folder / "test").mkdir()
    np.save(folder / "data.npy", np.zeros((4, 2)))
    np.save(folder / "targets.npy", np.arange(4) % 2)
    for name in ("train/0.npz", "test/0.npz", "partition.pkl"):
        (folder / name).write_bytes(data)
    with suppress(ConfigError, DataError):
        (import_fl_bench if folder.name == "synthetic" else import_pfllib)(folder, room / "imported")


def client_seeds() -> list[bytes]:
    file = io.BytesIO()
    np.savez(file, data={"x": np.zeros((2, 2), np.float32), "y": np.arange(2)})  # pyright: ignore
    indices = [{"train": np.arange(2), "val": [], "test": np.arange(2, 4)}]
    return [file.getvalue(), pickle.dumps({"separation": {"total": 1}, "data_indices": indices}, 4)]


def array_seeds() -> list[bytes]:
    file = io.BytesIO()
    np.savez(file, x=np.zeros((2, 2), np.float32), y=np.arange(2))
    return [file.getvalue()]


def image_seeds() -> list[bytes]:
    files = {form: io.BytesIO() for form in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")}
    for form, file in files.items():
        Image.new("RGB", (4, 4), 9).save(file, format=form)
    return [file.getvalue() for file in files.values()]


# -- files of public data sets, and of a run's clients per round


def traces(data: bytes, room: Path) -> None:
    path = room / ("trace.json" if data[:1] == b"[" else "trace.csv")
    path.write_bytes(data)
    with suppress(ConfigError):
        rounds = read_trace(path, 5, ["va", "rome", "bern", "nice", "0"], 2)
        assert all(set(clients) <= set(range(5)) for clients in rounds)


def public_sets(data: bytes, room: Path) -> None:
    """The first byte says which: idx files, AG News, MATLAB files or binary batches of CIFAR."""
    path = room / "file.bin"
    path.write_bytes(data[1:])
    read = PUBLIC_READERS[data[0] % len(PUBLIC_READERS) if data else 0]
    with suppress(DataError):
        read(path)


PUBLIC_READERS = (
    lambda path: read_idx(path, 1),
    lambda path: read_idx(path, 3),
    ag_news._read,
    office_caltech10._read,
    cifar10._read,
)


def public_set_seeds() -> list[bytes]:
    header = bytes((0, 0, 8, 1, 0, 0, 0, 2))
    images = bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2))
    news = b'"3","Title","A ""text"" of it."\n"1","Other","Text"\n'
    files = [header + b"ab", images + bytes(8), news]
    for compressed in (False, True):
        matrices = io.BytesIO()
        counts = np.ones((3, office_caltech10.WORDS), np.uint8)
        savemat(matrices, {"fts": counts, "labels": np.array([[1], [2], [10]])}, do_compression=compressed)
        files.append(matrices.getvalue())
    batch = bytes([7]) + bytes(3072)
    return [bytes([kind]) + data for kind, data in zip((0, 1, 2, 3, 3, 4), [*files, batch], strict=True)]


def csv_tables(data: bytes, room: Path) -> None:
    """The table of another league, or the curve of a collected cell: the first byte says which."""
    path = room / "cell.csv"
    path.write_bytes(data[1:])
    with suppress(RunError):
        if data[:1] == b"0":
            read_csv(path)
        else:
            _read_curve(room / "cell", "pre", "accuracy")


def csv_table_seeds() -> list[bytes]:
    line = ",".join('"{}"' if name in ("new_clients", "settings") else "[0.5]" for name in COLUMNS)
    return [f"0{','.join(COLUMNS)}\n{line}\n".encode(), b"1round,moment,accuracy\n1,pre,0.5\n2,post,0.5\n"]
