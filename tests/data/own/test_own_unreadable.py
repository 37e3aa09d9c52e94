"""Files, folders and objects that can't be read at all, and packages that are not there: one sentence each."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_files import TABLE, describe, findings, npz, pictures, table
from torch.utils.data import TensorDataset

from data_frames import Frame
from headwise.data.own.description import Description, read_description
from headwise.data.own.guess import guess_description
from headwise.data.own.layout import check_unchanged, hash_files
from headwise.data.own.objects import store
from headwise.errors import DataError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


def errors(d: Description) -> list[str]:
    return [str(f) for f in findings(d) if f.level == "error"]


def test_a_table_that_the_system_can_not_read(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").symlink_to("/proc/self/mem")  # a file that even root can't read from its beginning
    d = describe(tmp_path, TABLE)
    assert errors(d)[0] == f"{d.place}: it can't be read: Input/output error."


@pytest.mark.parametrize(
    ("module", "kind", "needed"),
    [("pyarrow.parquet", "Parquet", "pyarrow: pip install 'headwise[tables]'"),
     ("PIL", "an image", "pillow: pip install 'headwise[images]'")],
)  # fmt: skip
def test_packages_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, kind: str, needed: str
) -> None:
    if module == "PIL":
        d = pictures(tmp_path)
        first = d.place / "ann" / "cat" / "0.png"
    else:
        (tmp_path / "t.parquet").write_bytes(b"PAR1")
        d = describe(tmp_path, TABLE.replace('"csv"', '"parquet"').replace("patients.csv", "t.parquet"))
        first = d.place
    monkeypatch.setitem(sys.modules, module, None)
    assert errors(d) == [f"{first} is {kind}, which needs {needed}."]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, because root may read every folder."""
    d = pictures(tmp_path)

    def deny(self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)
    assert errors(d) == [f"{d.place} can't be read: Permission denied."]


def test_arrays_that_are_none(tmp_path: Path) -> None:
    d = npz(tmp_path, ann={"x": X, "y": Y})
    (d.place / "bob.npz").write_bytes(b"PK no zip")
    assert errors(d)[0].startswith(f"client 'bob': {d.place / 'bob.npz'} can't be read as NPZ: ")
    home = store({"va": (X, Y)}, tmp_path)
    home.write_text("".join(line for line in home.read_text().splitlines(True) if not line.startswith("sha256")))
    (home.parent / "x.npy").write_bytes(b"none")
    assert errors(read_description(home))[0].startswith(f"{home.parent / 'x.npy'} can't be read: ")


def test_a_reference_to_an_array_that_is_gone(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    home = store({"va": (np.load(tmp_path / "x.npy", mmap_mode="r"), Y)}, tmp_path / "inputs", copy_gb=0)
    d = read_description(home)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DataError, match=rf"^{tmp_path / 'x.npy'} can't be read: No such file or directory\.$"):
        hash_files(d)
    home.write_text("".join(line for line in home.read_text().splitlines(True) if not line.startswith("sha256")))
    assert errors(read_description(home))[0].startswith(f"the arrays of {home.parent / 'x.json'} can't be read: ")


def test_targets_that_are_not_finite(tmp_path: Path) -> None:
    d = npz(tmp_path, ann={"x": X, "y": [[0.5, 1], [1.5, np.inf], [2, 1], [0, 1], [1, 1], [2, 2]]})
    assert errors(d) == [f"{d.place / 'ann.npz'}, row 1, client 'ann': the target is not a finite number."]


def test_files_that_come_and_go(tmp_path: Path) -> None:
    d = npz(tmp_path, ann={"x": X, "y": Y})
    known = hash_files(d)
    np.savez(d.place / "bob.npz", x=X, y=Y)
    with pytest.raises(DataError, match=r"bob.npz has been added since the run began: remove it"):
        check_unchanged(d, known)
    with pytest.raises(DataError, match=r"eve.npz has been removed since the run began: restore it"):
        check_unchanged(d, {**hash_files(d), "eve.npz": known["ann.npz"]})


def test_what_init_can_not_look_at(tmp_path: Path) -> None:
    (tmp_path / "notes.doc").write_text("x")
    with pytest.raises(DataError, match=r"there is no file with a known extension \(.csv, "):
        guess_description(tmp_path, "", ())
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe,\x00\n")
    with pytest.raises(DataError, match=r"t.csv can't be read as UTF-8 text\.$"):
        guess_description(tmp_path / "t.csv", "", ())


def test_init_sees_the_files_that_a_run_reads(tmp_path: Path) -> None:
    """Endings in capitals, but no hidden files, which some systems leave beside others."""
    (tmp_path / "._va.csv").write_bytes(b"\x00\x05\xff")
    (tmp_path / "VA.CSV").write_text("age,ill\n3,yes\n4.5,no\n")
    assert guess_description(tmp_path, "", ("ill",)).description.features.number == ("age",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Frame(a=[1, 2], b=[1]), "client 'va' has columns of different lengths: {'a': 2, 'b': 1}."),
        ([1, 2, 3, 4], "client 'va' has 4 items, but needs (x, y), (train, test) or (train, val, test)."),
    ],
)
def test_objects_that_are_no_samples(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        store({"va": value}, tmp_path, target="b")
    assert str(error.value) == message


def test_a_torch_data_set_without_targets(tmp_path: Path) -> None:
    import torch

    with pytest.raises(DataError, match=r"client 'va' has a TensorDataset whose samples are not \(x, y\)\.$"):
        store({"va": TensorDataset(torch.tensor(X))}, tmp_path)


def test_json_of_check_names_the_file(tmp_path: Path) -> None:
    """A finding's place is a path or the name of what was passed: both are plain text."""
    d = table(tmp_path, ["va,old,f,no"])
    plain = [{**vars(f), "file": str(f.file or "")} for f in findings(d)]
    assert json.loads(json.dumps(plain))[0]["file"] == str(d.place)
