"""Data files of one's own, damaged at random: each is read, or refused in one sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from fuzzing import damaged, fuzzed, try_call
from hypothesis import given

from headwise.data.own.check import check
from headwise.data.own.description import read_description
from headwise.data.own.guess import guess_description
from headwise.data.sources.office_caltech10 import DOMAINS, OfficeCaltech10
from headwise.errors import DataError, HeadwiseError

COLUMNS = 'client = "c"\ntarget = "y"\n[features]\nnumber = ["a"]\ncategory = ["b"]\n'
ROWS = [{"c": "uv"[i % 2], "a": i + 0.5, "b": "pqr"[i % 3], "y": i % 2} for i in range(8)]
CSV = ("c,a,b,y\n" + "".join(f"{r['c']},{r['a']},{r['b']},{r['y']}\n" for r in ROWS)).encode()
JSONL = "".join(json.dumps(r) + "\n" for r in ROWS).encode()
TOML = f'format = "csv"\npath = "t.csv"\n{COLUMNS}[split]\nratio = "75/25"\n[preprocess]\nfill = "mean"\n'.encode()


def make_npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2)
    return file.getvalue()


def make_image(format: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, format)
    return file.getvalue()


def make_parquet() -> bytes:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(ROWS), file)
    return file.getvalue()


def make_matlab() -> bytes:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"fts": np.ones((3, 800)), "labels": np.array([[1], [2], [3]])}, do_compression=True)
    return file.getvalue()


def check_file(home: Path, name: str, content: bytes, description: str) -> None:
    """Describe, check and guess: whatever is wrong is a finding or one sentence."""
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (home / "data.toml").write_text(description, "utf-8")
    d = read_description(home / "data.toml")
    loaded, findings = check(d)
    assert loaded is not None or findings
    columns = ("c", ["y"]) if d.is_table else ("", [])
    try_call(lambda: guess_description(d.place, *columns), HeadwiseError)


@fuzzed
@given(damaged(CSV))
def test_damaged_csv(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, "t.csv", content, f'format = "csv"\npath = "t.csv"\n{COLUMNS}')


@fuzzed
@given(damaged(JSONL))
def test_damaged_jsonl(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, "t.jsonl", content, f'format = "jsonl"\npath = "t.jsonl"\n{COLUMNS}')


@fuzzed
@given(damaged(make_parquet()))
def test_damaged_parquet(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, "t.parquet", content, f'format = "parquet"\npath = "t.parquet"\n{COLUMNS}')


@fuzzed
@given(damaged(make_npz()))
def test_damaged_npz(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, "n/u.npz", content, 'format = "npz"\npath = "n"\n')


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_damaged_images(tmp_path: Path, format: str) -> None:
    @fuzzed
    @given(damaged(make_image(format)))
    def try_images(content: bytes) -> None:
        for name, data in (("i/u/p/a.png", make_image("PNG")), ("i/u/q/a.png", make_image("PNG"))):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        check_file(tmp_path, "i/u/q/b.png", content, 'format = "images"\npath = "i"\n')

    try_images()


@fuzzed
@given(damaged(TOML))
def test_damaged_descriptions(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(CSV)
    path = tmp_path / "data.toml"
    path.write_bytes(content)
    d = try_call(lambda: read_description(path), HeadwiseError, str(path))
    if d is not None and Path(d.path).is_relative_to(tmp_path):
        try_call(lambda: check(d), HeadwiseError)


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "owner.npy", "names.json", "x.json"])
def test_damaged_arrays(tmp_path: Path, name: str) -> None:
    place = tmp_path / "x.bin"
    place.write_bytes(np.arange(8, dtype="<f4").tobytes())
    for array, value in {"x": np.arange(8.0).reshape(4, 2), "y": np.arange(4) % 2, "owner": np.arange(4) // 2}.items():
        np.save(tmp_path / f"{array}.npy", value)
    (tmp_path / "names.json").write_text('["u", "v"]')
    reference = [{"file": str(place), "offset": 0, "type": "<f4", "shape": [4, 2]}]
    (tmp_path / "x.json").write_text(json.dumps(reference)) if name == "x.json" else None
    good = (tmp_path / name).read_bytes()

    @fuzzed
    @given(damaged(good))
    def try_arrays(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        (tmp_path / "data.toml").write_text('format = "arrays"\npath = "."\n', "utf-8")
        loaded, findings = check(read_description(tmp_path / "data.toml"))
        assert loaded is not None or findings

    try_arrays()


@fuzzed
@given(damaged(make_matlab()))
def test_damaged_matlab_files(tmp_path: Path, content: bytes) -> None:
    home = tmp_path / "office-caltech10"
    home.mkdir(exist_ok=True)
    for domain in DOMAINS:
        (home / f"{domain}.mat").write_bytes(content)
    try_call(lambda: OfficeCaltech10().load(tmp_path), DataError, "office-caltech10")
