"""Data files that attack: each is refused in one sentence with exit code 2, or read in bounded time and memory."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.cli import main
from headwise.data.own import tables
from headwise.data.own.description import MISSING
from headwise.data.own.guess import guess_description

INIT = ("data", "init")
COLUMNS = ("--clients", "client", "--target", "y")
LONG = "x" * 5000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line that the command prints to stderr, with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(list(command))
    error = capsys.readouterr().err
    assert end.value.code == 2, error
    assert error.count("\n") == 1
    return error


def write_lines(path: str, **columns: Any) -> None:
    """40 rows of JSON; a column is a function of the row's number."""
    rows = [{name: make(i) for name, make in columns.items()} for i in range(40)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_image_header(path: Path, width: int, height: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def write_images() -> Path:
    """Two clients with two classes; returns the folder of one class."""
    from PIL import Image

    for client in ("ann", "bob"):
        for label in ("cat", "dog"):
            home = Path("images") / client / label
            home.mkdir(parents=True)
            for k in range(1, 7):
                Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(home / f"{k}.png")
    return Path("images/ann/cat")


def test_a_header_with_a_name_twice(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("client,a,a,y\n" + "u,1.5,2.5,0\nv,2.5,1.5,1\n" * 9)
    assert "several columns called 'a'" in refusal(capsys, *INIT, "t.csv", *COLUMNS)


NESTED: list[dict[str, Any]] = [
    {"client": lambda i: [f"c{i % 2}"], "a": lambda i: i + 0.5, "y": lambda i: i % 2},
    {"client": lambda i: {"name": f"c{i % 2}"}, "a": lambda i: i + 0.5, "y": lambda i: i % 2},
    {"client": lambda i: f"c{i % 2}", "a": lambda i: i + 0.5, "y": lambda i: {"k": i % 2}},
    {"client": lambda i: f"c{i % 2}", "a": lambda i: i + 0.5, "y": lambda i: [[i % 2]]},
    {"client": lambda i: f"c{i % 2}", "a": lambda i: {"b": i}, "y": lambda i: i % 2},
]


@pytest.mark.parametrize("columns", NESTED, ids=["client list", "client object", "target object", "target", "feature"])
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_nested_cells(format: str, columns: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    write_lines("t.jsonl", **columns)
    if format == "parquet":
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]

        parquet.write_table(
            pa.Table.from_pylist([json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]), "t.parquet"
        )
    assert f"t.{format}" in refusal(capsys, *INIT, f"t.{format}", *COLUMNS)


@pytest.mark.parametrize("cells", [[1.5], [1, [2]], {"a": 1}, 10**400, "\ud800"], ids=str)
def test_cells_that_are_no_numbers(cells: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Described by hand, so that nothing is guessed; lists of one length would even make a matrix."""
    write_lines("t.jsonl", client=lambda i: f"c{i % 2}", a=lambda _: cells, y=lambda i: i % 2)
    text = 'format = "jsonl"\npath = "t.jsonl"\nclient = "client"\ntarget = "y"\n[features]\n'
    for kind in ("number", "category", "text") if not isinstance(cells, int) else ("number",):
        Path("data.toml").write_text(f'{text}{kind} = ["a"]\n')
        assert "t.jsonl" in refusal(capsys, "data", "show", "data.toml")


def test_an_image_of_many_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    write_image_header(write_images() / "0.png", 50_000, 50_000)
    main_ends_well("data", "init", "images")
    capsys.readouterr()
    assert "more than 67,108,864 pixels" in refusal(capsys, "data", "show", "data.toml")


def test_a_pipe_and_a_program_among_images(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is opened: one would wait forever, and Pillow would run Ghostscript for the other."""
    home = write_images()
    os.mkfifo(home / "0.png")
    main_ends_well("data", "init", "images")
    capsys.readouterr()
    assert "0.png: it is not a file." in refusal(capsys, "data", "show", "data.toml")
    (home / "0.png").unlink()
    (home / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n")
    assert "0.png: it is not a readable image." in refusal(capsys, "data", "show", "data.toml")


def main_ends_well(*command: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(command))
    assert end.value.code == 0


@pytest.mark.parametrize("kind", ["complex", "dates", "durations", "complex target", "dates as target"])
def test_arrays_that_are_no_numbers(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    x: Any = np.arange(60.0).reshape(20, 3)
    y: Any = np.arange(20) % 2
    strange = {"complex": 1j, "dates": "datetime64[D]", "durations": "timedelta64[s]"}[kind.split()[0]]
    for k in range(2):
        changed = [v + strange if strange == 1j else v.astype(np.int64).astype(strange) for v in (x, y)]
        Path("n").mkdir(exist_ok=True)
        np.savez(f"n/{k}.npz", x=x if "target" in kind else changed[0], y=changed[1] if "target" in kind else y)
    assert f"n/0.npz, client '0': {'y' if 'target' in kind else 'x'} is of type" in refusal(capsys, *INIT, "n")


def test_an_archive_whose_header_promises_more(capsys: pytest.CaptureFixture[str]) -> None:
    Path("n").mkdir()
    np.savez("n/a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    with zipfile.ZipFile("n/a.npz") as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    members["x.npy"] = members["x.npy"].replace(b"(4, 2), }          ", b"(4, 2" + b"0" * 9 + b"), } ")
    with zipfile.ZipFile("n/a.npz", "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    assert "shorter than its header says" in refusal(capsys, *INIT, "n")


@pytest.mark.parametrize("command", [(*INIT, LONG), ("data", "check", "long.toml"), ("data", "show", "long.toml"),
                                     ("run", "--data", "long.toml"), (*INIT, ".", "-o", LONG), ("data", "show", LONG),
                                     ("run", "--data", f"{LONG}.toml")])  # fmt: skip
def test_long_paths(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("client,a,y\nu,1,2\n")
    text = f'format = "csv"\npath = "{LONG}"\nclient = "client"\ntarget = "y"\n[features]\nnumber = ["a"]\n'
    Path("long.toml").write_text(text)
    assert refusal(capsys, *command)


def test_a_line_without_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LINE", 1000)
    Path("t.csv").write_text("client,a,y\nu,1,2\nv," + "9" * 2000 + ",1\n")
    Path("t.jsonl").write_text('{"client": "u", "a": 1.5, "y": 0}\n{"client": "' + "u" * 2000 + '", "a": 2, "y": 1}\n')
    for name in ("t.csv", "t.jsonl"):
        assert "a line of more than 1,000 characters" in refusal(capsys, *INIT, name, *COLUMNS)


def test_many_columns_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work grows with the columns, not with their square: comparisons of names are counted."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    def count(columns: int) -> int:
        nonlocal compared
        names = [Name(f"f{i}") for i in range(columns)]
        Path("t.csv").write_text("\n".join([",".join(["client", "y", *names]), *["u,1" + ",1.5" * columns] * 3]))
        monkeypatch.setattr("headwise.data.own.guess.columns_of", lambda *_: [Name("client"), Name("y"), *names])
        compared = 0
        guess = guess_description(Path("t.csv"), "client", ["y"])
        assert len(guess.description.features.number) + len(guess.left_out) == columns
        return compared

    few = count(100)
    many = count(400)
    assert many < 6 * few
    assert len(MISSING) > 5


HOSTILE = [
    "format = 1\npath = 2\n",
    'format = "csv"\npath = "a\\u0000b"\nclient = "c"\ntarget = "y"\n[features]\nnumber = ["a"]\n',
    'format = "csv"\npath = "t.csv"\nclient = "client"\ntarget = "y"\ndelimiter = "\\n"\n[features]\nnumber = ["a"]\n',
    'format = "csv"\npath = "t.csv"\nclient = "client"\ntarget = "y"\n[features]\nnumber = ["a", "a"]\n',
    'format = "csv"\npath = "t.csv"\nclient = "client"\ntarget = "y"\n[features]\nnumber = [["a"]]\n',
    'format = "csv"\npath = "/dev/zero"\nclient = "client"\ntarget = "y"\n[features]\nnumber = ["a"]\n',
    'format = "arrays"\npath = "arrays"\n',
    'format = "images"\npath = "t.csv"\n',
    "a = " + "[" * 5000,
    'format = "csv"\npath = "t.csv"\nclient = "client"\ntarget = "y"\n[features]\nnumber = ["a"]\n#' + "x" * (1 << 24),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_descriptions(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("client,a,y\n" + "u,1.5,0\nv,2.5,1\n" * 9)
    home = Path("arrays")
    home.mkdir()
    np.save(home / "y.npy", np.arange(4) % 2)
    np.save(home / "owner.npy", np.zeros(4, np.int64))
    (home / "names.json").write_text('["u"]')
    (home / "x.json").write_text('[{"file": "/etc/passwd", "offset": 0, "type": "|O", "shape": [4, 2]}]')
    Path("data.toml").write_text(text)
    assert refusal(capsys, "data", "show", "data.toml")


@pytest.mark.parametrize("change", [("owner.npy", np.array([0, 0, 7, 0])), ("owner.npy", np.zeros(4)),
                                    ("part.npy", np.array([0, 1, 2, 9])), ("y.npy", np.zeros(4, complex)),
                                    ("x.npy", np.zeros(4)), ("names.json", b'[["u"]]'), ("names.json", b'["u", "u"]'),
                                    ("names.json", b"{}")])  # fmt: skip
def test_arrays_that_contradict_each_other(change: tuple[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    home = Path("arrays")
    home.mkdir()
    np.save(home / "x.npy", np.arange(8.0).reshape(4, 2))
    np.save(home / "y.npy", np.arange(4) % 2)
    np.save(home / "owner.npy", np.zeros(4, np.int64))
    (home / "names.json").write_text('["u"]')
    name, value = change
    (home / name).write_bytes(value) if isinstance(value, bytes) else np.save(home / name, value)
    Path("data.toml").write_text('format = "arrays"\npath = "arrays"\nsplit = {by = "files"}\n')
    assert "arrays" in refusal(capsys, "data", "show", "data.toml")
