"""Arrays that are too large to copy stay in their files; a run notices which of its files changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_files import ROWS, table

import headwise as hw
from headwise.data.own.description import read_description
from headwise.data.own.layout import hash_files, read_hashes
from headwise.data.own.load import load
from headwise.data.own.objects import store
from headwise.data.own.raw import JoinedArrays, locate_array
from headwise.engine.events import Event, RoundEnded
from headwise.errors import DataError, HeadwiseError, RunError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))
Y = np.arange(20) % 2


def map_array(path: Path, x: Any = X) -> Any:
    np.save(path, x)
    return np.load(path, mmap_mode="r")


def rows(run: hw.Run) -> list[Any]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in run.rounds]


class Stop:
    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            raise KeyboardInterrupt


def test_where_a_mapped_array_lies(tmp_path: Path) -> None:
    x = map_array(tmp_path / "x.npy")
    for part in (x, x[5:], np.asarray(x)[5:][2:9], x[7]):
        place = locate_array(part)
        assert place is not None
        again = np.memmap(place["file"], place["type"], "r", place["offset"], tuple(place["shape"]))
        assert again.tolist() == part.tolist()
    assert locate_array(X) is None
    assert locate_array(x[:, :2]) is None, "not one piece of the file"
    assert locate_array(np.memmap(tmp_path / "x.npy", "f8", "c")) is None, "what was changed is only in memory"


def test_several_arrays_are_one() -> None:
    joined = JoinedArrays([X[:7], X[7:7], X[7:]])
    assert (joined.shape, joined.ndim, joined.dtype, len(joined)) == ((20, 3), 2, np.float32, 20)
    for part in (slice(5, 9), slice(None), [19, 0, 7, 6, 7], np.array([], np.int64)):
        assert joined[part].tolist() == X.astype(np.float32)[part].tolist()


def test_a_reference_gives_the_same_run_as_a_copy(tmp_path: Path) -> None:
    whole = map_array(tmp_path / "x.npy")
    clients = {"va": (whole[:12], Y[:12]), "rome": (map_array(tmp_path / "r.npy", X[8:]), Y[8:])}
    copy = hw.fit(clients, rounds=2, out=tmp_path / "copy")
    with pytest.raises(KeyboardInterrupt):
        hw.fit(clients, rounds=2, out=tmp_path / "run", copy_gb=1e-9, observers=[Stop()])
    (home,) = (tmp_path / "run" / "inputs").glob("data-*")
    assert sorted(p.name for p in home.iterdir()) == ["data.toml", "names.json", "owner.npy", "x.json", "y.npy"]
    assert rows(hw.resume(tmp_path / "run")) == rows(copy)


def test_resume_names_the_file_that_changed(tmp_path: Path) -> None:
    x = map_array(tmp_path / "x.npy")
    with pytest.raises(KeyboardInterrupt):
        hw.fit({"va": (x, Y), "rome": (x, Y)}, rounds=2, out=tmp_path / "run", copy_gb=1e-9, observers=[Stop()])
    stat = (tmp_path / "x.npy").stat()
    map_array(tmp_path / "x.npy", X + 1)
    with pytest.raises(DataError, match=r"^/.*/x\.npy has changed since the run began: restore it, or begin"):
        hw.resume(tmp_path / "run")
    os.utime(tmp_path / "x.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # only its content says it
    with pytest.raises(DataError, match=r"x\.npy has changed since the run began"):
        hw.resume(tmp_path / "run", verify=True)
    map_array(tmp_path / "x.npy", X)
    assert hw.resume(tmp_path / "run").complete, "another time, but the same content"


@pytest.mark.parametrize("change", ["has changed", "has been removed", "has been added"])
def test_files_of_a_data_toml_are_named_too(tmp_path: Path, change: str) -> None:
    home = tmp_path / "all"
    home.mkdir()
    d = table(tmp_path, [*ROWS] * 4)
    for name in ("a", "b"):
        (home / f"{name}.csv").write_text(d.place.read_text())
    text = (tmp_path / "data.toml").read_text().replace("patients.csv", "all").replace('client = "hospital"', "")
    (tmp_path / "data.toml").write_text(text)
    with pytest.raises(KeyboardInterrupt):
        hw.run(hw.Experiment(data=str(tmp_path / "data.toml"), rounds=2), tmp_path / "run", observers=[Stop()])
    if change == "has changed":
        (home / "b.csv").write_text(d.place.read_text() + ROWS[0])
    elif change == "has been removed":
        (home / "b.csv").unlink()
    else:
        (home / "b2.csv").write_text(d.place.read_text())
    with pytest.raises(DataError, match=rf"/all/b2?\.csv {change} since the run began: .* anew in another folder\.$"):
        hw.resume(tmp_path / "run")


def test_files_of_the_same_size_and_time_are_not_read(tmp_path: Path) -> None:
    table(tmp_path)
    d = read_description(tmp_path / "data.toml")
    known = hash_files(d)
    d.place.chmod(0)
    assert hash_files(d, known) == known
    os.utime(d.place, ns=(0, 0))
    if os.geteuid():  # who may read everything reads it again
        with pytest.raises(DataError, match="can't be read"):
            hash_files(d, known)


def test_what_is_only_in_memory_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError) as error:
        hw.fit({"va": (map_array(tmp_path / "x.npy"), Y), "rome": (X, Y)}, out=tmp_path / "run", copy_gb=1e-9)
    how = "np.save it and pass np.load(file, mmap_mode='r'), or raise copy_gb."
    assert str(error.value).endswith(f"and x of client 'rome' is not mapped from a file: {how}")
    assert not (tmp_path / "run").exists()


def test_damaged_lists_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "files.json").write_text("[1]")
    with pytest.raises(RunError, match=r"files.json is damaged: it must list the files of the data"):
        read_hashes(tmp_path / "files.json")
    toml = store({"va": (map_array(tmp_path / "x.npy"), Y)}, tmp_path / "run", copy_gb=1e-9)
    (tmp_path / "x.npy").write_bytes(b"short")
    with pytest.raises(DataError, match=r"has changed: its sha256"):
        load(read_description(toml))
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DataError, match=r"x.npy can't be read: No such file"):
        load(read_description(toml))
