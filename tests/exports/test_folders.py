"""Folders that are damaged, foreign, of another version or malicious: one sentence, and no code runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_runs import check_refused, raw, rewrite, small_run

import headwise as hw
from headwise.errors import ConfigError, RunError
from headwise.exports.card import MOST
from headwise.exports.run_models import Models


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    model = small_run(home / "run", "fedrep", rounds=1).model(0)
    model.save(home / "onnx")
    model.save(home / "torch", "torch")
    return home


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported / "onnx", tmp_path / "model"))


def same_values(a: bytes, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["card.json", "model.onnx", "weights.safetensors"])
def test_every_damaged_byte_is_noticed(exported: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(exported / ("torch" if "weights" in name else "onnx"), tmp_path / "model"))
    path = folder / name
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 7)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        if name == "card.json" and same_values(whole, damaged):
            continue  # the last digit of a number may make no difference
        path.write_bytes(damaged)
        check_refused(folder, "damaged|format|update|missing|names no")
    for size in (0, 1, len(whole) // 2):
        path.write_bytes(whole[:size])
        check_refused(folder, "damaged")
    path.unlink()
    check_refused(folder, f"has no {name}")


def test_foreign_and_other_versions(folder: Path, tmp_path: Path) -> None:
    check_refused(tmp_path / "nowhere", "nowhere does not exist, but must be a folder that headwise export wrote")
    check_refused(folder / "model.onnx", "is a file, but must be a folder that headwise export wrote")
    check_refused(tmp_path, "has no card.json: it is not a folder that headwise export wrote")
    (folder / "card.json").write_text('{"name": "a model of somebody else"}')
    check_refused(folder, "its format is None")
    (folder / "card.json").write_text("[]")
    check_refused(folder, "its format is None")


@pytest.mark.parametrize("version", [0, 2])
def test_other_formats(version: int, folder: Path) -> None:
    rewrite(folder, lambda card: card.update(format=version))
    check_refused(folder, rf"is in format {version}, but Headwise \S+ reads format 1\.")


@pytest.mark.parametrize("name", ["card.json", "model.onnx"])
def test_huge_files_are_not_read(folder: Path, name: str) -> None:
    os.truncate(folder / name, MOST[name] + 1)  # takes no room on the disk
    check_refused(folder, r"bytes, but no model has more than [\d,]+")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda card: card.update(classes=[]), "it names no classes"),
        (lambda card: card.update(classes="ab"), "its classes is 'ab'"),
        (lambda card: card.update(classes=["a", "b"]), r"must give float32 of shape \[1, 2\]"),
        (lambda card: card["inputs"].update(shape=[3]), "can't be used as a model"),
        (lambda card: card["inputs"].update(dtype="object"), "its dtype is 'object'"),
        (lambda card: card["inputs"].update(preprocessing={"form": "table"}), "its preprocessing can't be used"),
        (lambda card: card["inputs"].update(shape=[2**20, 2**20]), "its shape is"),
        (lambda card: card["files"].pop("model.onnx"), "names neither model.onnx nor weights and a network"),
        (lambda card: card.update(task="divination"), "its task is 'divination'"),
        (lambda card: card.pop("licence"), "its licence is missing"),
    ],
)
def test_cards_that_lie(folder: Path, change: Callable[[dict[str, Any]], None], why: str) -> None:
    rewrite(folder, change)
    check_refused(folder, why)


def test_programs_that_are_none(folder: Path) -> None:
    rewrite(folder, files={"model.onnx": b"not a program"})
    check_refused(folder, "model.onnx can't be used as a model: it is not ONNX")


def test_what_we_write_has_no_paths(exported: Path) -> None:
    for path in [*(exported / "onnx").iterdir(), *(exported / "torch").iterdir()]:
        assert str(Path(hw.__file__).parent).encode() not in path.read_bytes()


def test_a_loaded_model_can_be_saved_again_in_its_format(exported: Path, tmp_path: Path) -> None:
    loaded = hw.load_model(exported / "onnx")
    loaded.save(tmp_path / "again")
    for name in ("model.onnx", "card.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / "onnx" / name).read_bytes()
    with pytest.raises(ConfigError, match="format is 'torch', but this model was loaded from the format onnx"):
        loaded.save(tmp_path / "other", "torch")
    assert not (tmp_path / "other").exists()
    with pytest.raises(RunError, match="no module"):
        _ = loaded.module


def test_a_folder_appears_whole_or_not_at_all(exported: Path, tmp_path: Path) -> None:
    model = hw.Run(exported / "run").model(0)
    with pytest.raises(ConfigError, match="format is 'pickle', but must be one of onnx, torch"):
        model.save(tmp_path / "new", "pickle")  # pyright: ignore[reportArgumentType]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunError, match="is not an empty folder"):
        model.save(tmp_path / "full")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_samples_that_do_not_fit(exported: Path) -> None:
    models = Models(hw.Run(exported / "run"))
    x = raw(models, 0)
    loaded = hw.load_model(exported / "onnx")
    assert loaded.predict_proba(x[:0]).shape == (0, 10)
    many = np.concatenate([x] * 300)
    np.testing.assert_array_equal(loaded.predict(many)[: len(x)], loaded.predict(x))
    for wrong in (x[:, :3], x.astype(str), [["a"]]):
        with pytest.raises(hw.HeadwiseError, match="but the model takes float32 of shape"):
            loaded.predict(wrong)
