"""Folders of PFLlib and FL-bench: the same clients, parts and values, and nothing of their pickles is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.app.prepare import divide
from headwise.cli import main
from headwise.data.own.peers import LARGEST, SCALES, import_fl_bench, import_pfllib
from headwise.errors import DataError, RunError
from headwise.settings.experiment import experiment_from

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (40, 1, 16, 16)).astype(np.float32)
LABELS = np.arange(40) % 3


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def write_pfllib(folder: Path, clients: list[tuple[Any, Any]], classes: int | None = 4) -> Path:
    """As PFLlib's `save_file` writes it; three quarters of each client's samples are for training."""
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True)
    for c, (x, y) in enumerate(clients):
        end = len(y) * 3 // 4
        np.savez_compressed(folder / "train" / f"{c}.npz", data={"x": x[:end], "y": y[:end]})  # pyright: ignore
        np.savez_compressed(folder / "test" / f"{c}.npz", data={"x": x[end:], "y": y[end:]})  # pyright: ignore
    if classes is not None:
        (folder / "config.json").write_text(json.dumps({"num_clients": len(clients), "num_classes": classes}))
    return folder


def write_fl_bench(folder: Path, indices: Any, **arrays: Any) -> Path:
    folder.mkdir(parents=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    (folder / "partition.pkl").write_bytes(
        pickle.dumps({"separation": {"total": len(indices)}, "data_indices": indices})
    )
    return folder


def parts(train: Any, test: Any = (), val: Any = ()) -> dict[str, Any]:
    return {"train": np.array(train, np.int64), "val": np.array(val, np.int32), "test": [*test]}


def data_of(file: Path) -> Any:
    return divide(experiment_from({"data": str(file), "method": "fedavg"}), Path())


def sentence(part: str) -> str:
    return rf"\A[^\n]*{re.escape(part)}[^\n]*\.\Z"


def test_pfllibs_clients_are_trained_and_tested_on_the_same_values(tmp_path: Path) -> None:
    clients = [(IMAGES[c::12], LABELS[c::12]) for c in range(12)]
    data = data_of(import_pfllib(write_pfllib(tmp_path / "MNIST", clients), tmp_path / "out"))
    assert data.names == tuple(map(str, range(12)))
    assert data.task.classes == 4  # one of which nobody has
    for c, (x, y) in enumerate(clients):
        mine = data.client(c)
        end = len(y) * 3 // 4
        assert mine.train.x.numpy().tobytes() == x[:end].tobytes()
        assert mine.train.y.tolist() == y[:end].tolist()
        assert mine.test.x.numpy().tobytes() == x[end:].tobytes()
        assert mine.test.y.tolist() == y[end:].tolist()
        assert len(mine.val) == 0


def test_bytes_and_doubles_become_float_without_scaling(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (8, 3, 4, 4)).astype(np.uint8)
    clients = [(pixels, LABELS[:8]), (np.asfortranarray(pixels.astype(np.float64)), LABELS[:8].astype(np.int32))]
    data = data_of(import_pfllib(write_pfllib(tmp_path / "in", clients), tmp_path / "out"))
    assert np.array_equal(data.client(0).train.x, pixels[:6])
    assert np.array_equal(data.client(1).test.x, pixels[6:])


def test_texts_and_letters_are_tokens(tmp_path: Path) -> None:
    tokens = RNG.integers(0, 50, (8, 5))
    texts = np.empty((8, 2), dtype=object)
    texts[:, 0] = [row.tolist() for row in tokens]
    texts[:, 1] = 5
    news = data_of(import_pfllib(write_pfllib(tmp_path / "AGNews", [(texts, LABELS[:8])]), tmp_path / "a"))
    letters = data_of(import_pfllib(write_pfllib(tmp_path / "Shakespeare", [(tokens, LABELS[:8])]), tmp_path / "b"))
    for data in (news, letters):
        assert np.array_equal(data.client(0).train.x, tokens[:6])
        assert data.task.vocabulary == tokens.max() + 1


def test_a_client_may_have_no_test_samples_but_needs_training_samples(tmp_path: Path) -> None:
    folder = write_pfllib(tmp_path / "in", [(IMAGES[:8], LABELS[:8]), (IMAGES[8:], LABELS[8:])])
    np.savez(folder / "test" / "1.npz", data={"x": np.array([]), "y": np.array([])})  # pyright: ignore
    data = data_of(import_pfllib(folder, tmp_path / "out"))
    assert [len(data.client(c).test) for c in range(2)] == [2, 0]
    np.savez(folder / "train" / "1.npz", data={"x": np.array([]), "y": np.array([])})  # pyright: ignore
    with pytest.raises(DataError, match=sentence("train/1.npz has no samples")):
        import_pfllib(folder, tmp_path / "again")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (IMAGES[:8], LABELS[:8] / 2, "a whole number in y"),
        (IMAGES[:8, 0, 0, 0], LABELS[:8], "x of shape [6]"),
        (IMAGES[:8], IMAGES[:8], "a whole number in y"),
        (np.array([[[1, 2], 2], [[1], 1]] * 4, dtype=object), LABELS[:8], "that are not texts"),
        (np.array([[["a"], 1]] * 8, dtype=object), LABELS[:8], "that are not texts"),
        (np.array([[[-1], 1]] * 8, dtype=object), LABELS[:8], "tokens that are not whole numbers"),
        (np.array([[[10**30], 1]] * 8, dtype=object), LABELS[:8], "tokens that are not whole numbers"),
        (np.array(["a"] * 8), LABELS[:8], "is not a pickle of a client's samples and labels, or is damaged"),
        (["a"] * 8, LABELS[:8], "must hold arrays 'x' and 'y'"),
        (IMAGES[:8], np.full(8, 4), "labels are from 0 to 4, but must be from 0 to 4 - 1"),
        (IMAGES[:8], np.full(8, -1), "labels are from -1 to 0"),
    ],
)
def test_what_is_no_client_is_one_sentence(tmp_path: Path, x: Any, y: Any, message: str) -> None:
    folder = write_pfllib(tmp_path / "in", [(x, y)])
    with pytest.raises(DataError, match=sentence(message)):
        import_pfllib(folder, tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"[]", "config.json must be a JSON object with num_classes"),
        ("config.json", b'{"num_classes": true}', "0 to True - 1"),
        ("config.json", b'{"num_classes": 1e9}', "0 to 1000000000.0 - 1"),
        ("train/0.npz", b"no archive", "can't be read as PFLlib's"),
        ("test/0.npz", None, "can't be read as PFLlib's"),
        ("train/0.npz", {"x": IMAGES, "y": LABELS}, "can't be read as PFLlib's"),
        ("train/0.npz", {"data": IMAGES}, "its 'data' is not a dictionary"),
        ("train/0.npz", {"data": np.array([{}, {}])}, "its 'data' is not a dictionary"),
    ],
)
def test_damaged_folders_are_one_sentence(tmp_path: Path, name: str, content: Any, message: str) -> None:
    folder = write_pfllib(tmp_path / "in", [(IMAGES, LABELS)])
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        np.savez(folder / name, **content)
    with pytest.raises(DataError, match=sentence(message)):
        import_pfllib(folder, tmp_path / "out")


@pytest.mark.parametrize("function", [os.system, eval, pickle.loads, np.load])
def test_programs_in_a_clients_file_are_not_run(tmp_path: Path, function: Any) -> None:
    marker = tmp_path / "marker"
    folder = write_pfllib(tmp_path / "in", [(IMAGES, LABELS)])
    call = Calls(function, f"open({str(marker)!r}, 'w')" if function is eval else f"touch {marker}")
    np.savez(folder / "train" / "0.npz", data={"x": IMAGES, "y": LABELS, "z": call})  # pyright: ignore
    with pytest.raises(DataError, match=sentence("is refused: it names ")):
        import_pfllib(folder, tmp_path / "out")
    assert not marker.exists()


def test_a_bomb_in_a_clients_file_is_refused_by_its_size(tmp_path: Path) -> None:
    """The archive says that it unpacks to more than is read."""
    folder = write_pfllib(tmp_path / "in", [(IMAGES, LABELS)])
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": ()})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr("data.npy", head.getvalue())
    size = len(head.getvalue()).to_bytes(4, "little")
    claimed = (LARGEST - 1 + 2**20 & 0xFFFFFFFF).to_bytes(4, "little")
    (folder / "train" / "0.npz").write_bytes(file.getvalue().replace(size, claimed))
    with pytest.raises(DataError, match=sentence("train/0.npz")):
        import_pfllib(folder, tmp_path / "out")


def test_the_command_says_how_to_go_on_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pfllib(tmp_path / "MNIST", [(IMAGES[:20], LABELS[:20]), (IMAGES[20:], LABELS[20:])])

    def call(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["data", *words])
        return int(end.value.code or 0)

    words = ["import", "pfllib", str(folder), "-o", str(tmp_path / "out")]
    assert call(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("describes 2 clients with 40 samples of 1 x 16 x 16, 4 classes.")
    assert lines[1] == f"headwise run --data {tmp_path / 'out' / 'data.toml'} --model cnn"
    assert call(*words) == 2
    assert "already exists" in capsys.readouterr().err
    assert call("check", str(tmp_path / "out" / "data.toml")) == 0


def test_a_folder_of_another_layout_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=sentence("must have train/0.npz, test/0.npz")):
        import_pfllib(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match=sentence("FL-bench's mnist, fmnist")):
        import_fl_bench(tmp_path, tmp_path / "out")


def test_fl_benchs_partition_and_its_normalization(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (12, 28 * 28)).astype(np.uint8)
    indices = [parts([0, 2, 4], [1], [5]), parts([7, 6], [11, 3])]
    folder = write_fl_bench(tmp_path / "femnist", indices, data=pixels, targets=LABELS[:12])
    data = data_of(import_fl_bench(folder, tmp_path / "out"))
    mean, std = (np.float32(value[0]) for value in SCALES["femnist"])
    expected = (pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255) - mean) / std
    for c, rows in enumerate([([0, 2, 4], [5], [1]), ([7, 6], [], [11, 3])]):
        mine = data.client(c)
        for part, row in zip((mine.train, mine.val, mine.test), rows, strict=True):
            assert np.array_equal(part.x, expected[row])
            assert part.y.tolist() == LABELS[row].tolist()


def test_fl_benchs_public_files_are_read_in_its_order(tmp_path: Path) -> None:
    folder = write_fl_bench(tmp_path / "cifar10", [parts([0, 11], [1])])
    batch = RNG.integers(0, 256, (2, 3072)).astype(np.uint8)
    home = folder / "cifar-10-batches-py"
    home.mkdir()
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (home / name).write_bytes(pickle.dumps({"data": batch // (k + 1), "labels": [k, 9]}, 2))
    data = data_of(import_fl_bench(folder, tmp_path / "out"))
    raw = np.stack([batch[0], batch[1] // 6]).reshape(2, 3, 32, 32).astype(np.float32) / np.float32(255)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in SCALES["cifar10"])
    assert np.array_equal(data.client(0).train.x, (raw - mean) / std)
    assert data.client(0).train.y.tolist() == [0, 9]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "has no clients"),
        ([parts([0, 12])], "that are not from 0 to 11"),
        ([parts([0, -1])], "that are not from 0 to 11"),
        ([parts([0]), parts([], [1])], "no training samples for client 1: generate it with --split sample"),
        ([{"train": np.array([0.5])}], "not a list of whole numbers"),
        ([{"train": np.array([[0]])}], "not a list of whole numbers"),
        ([{"train": "all"}], "not a list of whole numbers"),
        ([{"train": [10**30]}], "not a list of whole numbers"),
        ([[0, 1]], "must hold 'data_indices'"),
        ({}, "must hold 'data_indices'"),
        ([Calls(os.system, "true")], "is refused: it names "),
    ],
)
def test_what_is_no_partition_is_one_sentence(tmp_path: Path, indices: Any, message: str) -> None:
    folder = write_fl_bench(tmp_path / "synthetic", indices, data=IMAGES[:12, 0, 0], targets=LABELS[:12])
    with pytest.raises(DataError, match=sentence(message)):
        import_fl_bench(folder, tmp_path / "out")
    assert os.listdir(tmp_path) == ["synthetic"]


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("synthetic", {}, "must have data.npy and targets.npy"),
        ("synthetic", {"data": IMAGES}, "targets.npy can't be read"),
        ("synthetic", {"data": IMAGES, "targets": LABELS[:3]}, "one whole number a sample"),
        ("synthetic", {"data": IMAGES, "targets": LABELS / 2}, "one whole number a sample"),
        ("cifar10", {"data": IMAGES, "targets": LABELS}, "but cifar10 has 3 channels"),
        ("mnist", {}, "nor the public files of mnist"),
    ],
)
def test_samples_that_do_not_fit_are_one_sentence(tmp_path: Path, name: str, arrays: Any, message: str) -> None:
    with pytest.raises(DataError, match=sentence(message)):
        import_fl_bench(write_fl_bench(tmp_path / name, [parts([0])], **arrays), tmp_path / "out")


def test_nothing_is_left_where_a_folder_is_already(tmp_path: Path) -> None:
    folder = write_fl_bench(tmp_path / "synthetic", [parts([0, 1])], data=IMAGES[:12, 0, 0], targets=LABELS[:12])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(RunError, match="already exists"):
        import_fl_bench(folder, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["notes.txt"]
