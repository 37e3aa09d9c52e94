"""Folders that are damaged, foreign, of another version or malicious: one sentence, and no code runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exported_runs import raw, small_run

import headwise as hw
from headwise.disk.files import digest, sealed, write_json
from headwise.errors import RunError
from headwise.exports.archives import check_archive, check_onnx
from headwise.exports.card import MOST
from headwise.exports.personal import Models


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    model = small_run(home / "run", "fedrod", rounds=1).model(0)
    model.save(home / "onnx")
    model.save(home / "torch", "torch")
    return home


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported / "onnx", tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None], **files: bytes) -> None:
    """Change the card as an attacker would, with all hashes right."""
    card = json.loads((folder / "card.json").read_text())
    for name, data in files.items():
        name = {"onnx": "model.onnx", "pt2": "model.pt2"}[name]
        (folder / name).write_bytes(data)
        card["files"][name] = {"bytes": len(data), "sha256": digest(data)}
    change(card)
    write_json(folder / "card.json", sealed(card))


def refused(folder: Path, why: str) -> None:
    with pytest.raises(RunError, match=why) as told:
        hw.load(folder)
    assert "\n" not in str(told.value)


def same_values(a: bytes, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["card.json", "model.onnx", "weights.safetensors"])
def test_every_damaged_byte_is_noticed(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 7)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        if name == "card.json" and same_values(whole, damaged):
            continue  # the last digit of a number may make no difference
        path.write_bytes(damaged)
        refused(folder, "damaged|format|update|missing|names no")
    for size in (0, 1, len(whole) // 2):
        path.write_bytes(whole[:size])
        refused(folder, "damaged")
    path.unlink()
    refused(folder, f"has no {name}")


def test_foreign_and_other_versions(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere does not exist, but must be a folder that headwise export wrote")
    refused(folder / "weights.safetensors", "is a file, but must be a folder that headwise export wrote")
    refused(tmp_path, "has no card.json: it is not a folder that headwise export wrote")
    (folder / "card.json").write_text('{"name": "a model of somebody else"}')
    refused(folder, "its format is None")
    (folder / "card.json").write_text("[]")
    refused(folder, "its format is None")


def test_newer_and_older_formats(folder: Path) -> None:
    rewrite(folder, lambda card: card.update(format=2))
    refused(folder, "is in format 2, but this Headwise reads up to 1: update it")
    rewrite(folder, lambda card: card.update(format=0))
    refused(folder, "its format is 0")


@pytest.mark.parametrize("name", ["card.json", "model.onnx"])
def test_huge_files_are_not_read(folder: Path, name: str) -> None:
    os.truncate(folder / name, MOST[name] + 1)  # takes no room on the disk
    refused(folder, r"bytes, but no model has more than [\d,]+")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda card: card.update(classes=[]), "it names no classes"),
        (lambda card: card.update(classes="ab"), "its classes is 'ab'"),
        (lambda card: card.update(classes=["a", "b"]), "it must give 2 scores and probabilities"),
        (lambda card: card["inputs"].update(shape=[3]), "can't be used as a model"),
        (lambda card: card["inputs"].update(dtype="object"), "its dtype is 'object'"),
        (lambda card: card["inputs"].update(preprocessing={"form": "table"}), "its preprocessing can't be used"),
        (lambda card: card["files"].pop("model.onnx"), "names no program"),
        (lambda card: card.pop("licence"), "its licence is missing"),
    ],
)
def test_cards_that_lie(folder: Path, change: Callable[[dict[str, Any]], None], why: str) -> None:
    rewrite(folder, change)
    refused(folder, why)


def test_programs_that_are_none(folder: Path) -> None:
    rewrite(folder, lambda card: None, onnx=b"not a program")
    refused(folder, "model.onnx can't be used as a model")


def test_onnx_must_not_read_other_files(exported: Path, folder: Path) -> None:
    graph = onnx.load(exported / "onnx" / "model.onnx")
    check_onnx(graph.SerializeToString())
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    rewrite(folder, lambda card: None, onnx=graph.SerializeToString())
    refused(folder, "it takes weights from other files")


def calling(name: bytes) -> Callable[[bytes], bytes]:
    return lambda old: old.replace(b"torch.ops.aten.relu.default", name)


def pickled(old: bytes) -> bytes:
    return old.replace(b'"use_pickle": false', b'"use_pickle": true')


def sized(old: bytes) -> bytes:
    return old.replace(b"Symbol('s77'", b"Symbol(__import__('os').mkdir('evil')")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


def archived(data: bytes, change: dict[str, bytes]) -> bytes:
    """The archive with some of its files replaced or added."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in dict.fromkeys([*old.namelist(), *change]):
            new.writestr(name, change.get(name) if name in change else old.read(name))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("data/sample_inputs/model.pt", lambda old: pickle.dumps(Evil()), "holds '.*sample_inputs/model.pt'"),
        ("data/aotinductor/model.so", lambda old: b"code", "which no model needs"),
        ("data/weights/model_weights_config.json", pickled, "pickle"),
        ("models/model.json", calling(b"torch.os.mkdir"), "it calls"),
        ("models/model.json", calling(b"torch.ops.aten.from_file"), "it calls"),
        ("models/model.json", sized, "size"),
    ],
)  # fmt: skip
def test_archives_of_torch_must_not_run_code(
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[bytes], bytes],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(exported / "torch", tmp_path / "model"))
    whole = (folder / "model.pt2").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        inside = archive.namelist()[0].partition("/")[0] + f"/{name}"
        old = archive.read(inside) if inside in archive.namelist() else b""
    assert change(old) != old
    rewrite(folder, lambda card: None, pt2=archived(whole, {inside: change(old)}))
    refused(folder, why)
    assert not (tmp_path / "evil").exists()


def test_what_we_write_has_no_pickle_and_no_paths(exported: Path) -> None:
    data = (exported / "torch" / "model.pt2").read_bytes()
    check_archive(data)
    for path in [*(exported / "onnx").iterdir(), *(exported / "torch").iterdir()]:
        assert str(Path(hw.__file__).parent).encode() not in path.read_bytes()


def test_a_loaded_model_can_not_be_saved_again_but_copied(exported: Path, tmp_path: Path) -> None:
    loaded = hw.load(exported / "onnx")
    with pytest.raises(RunError, match="copy that folder instead"):
        loaded.save(tmp_path / "again")
    with pytest.raises(RunError, match="no module"):
        _ = loaded.module


def test_a_folder_appears_whole_or_not_at_all(exported: Path, tmp_path: Path) -> None:
    model = hw.Run(exported / "run").model(0)
    with pytest.raises(RunError, match="format is 'pickle', but must be one of onnx, torch"):
        model.save(tmp_path / "new", "pickle")  # pyright: ignore[reportArgumentType]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunError, match="is not an empty folder"):
        model.save(tmp_path / "full")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_samples_that_do_not_fit(exported: Path) -> None:
    models = Models(hw.Run(exported / "run"))
    x, loaded = raw(models, 0), hw.load(exported / "onnx")
    assert loaded.predict_proba(x[:0]).shape == (0, 10)
    many = np.concatenate([x] * 300)
    np.testing.assert_array_equal(loaded.predict(many)[: len(x)], loaded.predict(x))
    for wrong in (x[:, :3], x.astype(str), [["a"]]):
        with pytest.raises(hw.HeadwiseError, match="but the model takes float32 of shape"):
            loaded.predict(wrong)
