"""Exported folders with damage, and with cards that were changed and sealed again: a sentence, or the same answers."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzzing import damaged, fuzzed
from hypothesis import given

import headwise as hw
from headwise.disk.files import digest, seal, write_json
from headwise.errors import HeadwiseError
from headwise.exports.card import FILES
from headwise.exports.programs import OPERATORS
from headwise.exports.quality import measure_quality
from headwise.settings.experiment import experiment_from

COUNT = int(os.environ.get("HEADWISE_FUZZ", "60")) // 3
STRANGE: tuple[Any, ...] = (
    None, -1, 10**30, 0.5, "", "x", "__import__('os').mkdir('evil')", "../../evil", [], {}, [None], [[0]], True,
    {"a": {"b": []}}, "{{ 7*7 }}", "<script>",
)  # fmt: skip
CELLS = {"age": [3, ""], "sex": ["f", "z"]}
TABLE = "who,age,sex,ill\n" + "".join(f"{'ab'[k % 2]},{k % 7},{'fm'[k % 3 > 0]},{'yn'[k % 7 > 2]}\n" for k in range(40))


def make_models(home: Path) -> Path:
    """A run, and one of its models in both formats."""
    (home / "t.csv").write_text(TABLE)
    text = 'format = "csv"\npath = "t.csv"\nclient = "who"\ntarget = "ill"\n'
    (home / "data.toml").write_text(text + '[features]\nnumber = ["age"]\ncategory = ["sex"]\n')
    asked = {"method": "fedavg", "data": str(home / "data.toml"), "model": "mlp:3", "rounds": 1}
    model = hw.run(experiment_from(asked), home / "run").model("a")
    for format in FILES:
        model.save(home / format, format)  # pyright: ignore[reportArgumentType]
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def with_file(folder: Path, name: str, data: bytes) -> None:
    """Replace a file as its author could, with all hashes right."""
    card = json.loads((folder / "card.json").read_text())
    card["files"][name] = {"bytes": len(data), "sha256": digest(data)}
    (folder / name).write_bytes(data)
    write_json(folder / "card.json", seal(card))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a card."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, each in inside for p in places(each, (*path, key)))]


def changed(card: Any, rng: random.Random) -> tuple[Any, str]:
    path = rng.choice([p for p in places(card) if p and p[0] not in ("checksum", "files")])
    where = card
    for key in path[:-1]:
        where = where[key]
    if rng.random() < 0.2 and isinstance(where, dict):
        del where[path[-1]]
        return card, f"without {path}"
    where[path[-1]] = rng.choice(STRANGE)
    return card, f"{path} is {where[path[-1]]!r}"


@pytest.mark.parametrize("format", FILES)
def test_cards_that_somebody_changed(home: Path, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hashes are right; nothing runs, and nothing but a sentence is raised."""
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(home / format, tmp_path / "model"))
    whole, rng, refused = (folder / "card.json").read_text(), random.Random(7), 0
    for _ in range(COUNT):
        card, what = changed(json.loads(whole), rng)
        write_json(folder / "card.json", seal(card))
        said = outcome(folder, home / "data.toml")
        refused += said != ""
        assert "\n" not in said and not said.startswith("broken"), f"{what}: {said}"
        assert [p.name for p in tmp_path.iterdir()] == ["model"], what
    assert 0 < refused < COUNT


def outcome(folder: Path, data: Path) -> str:
    """What is said when the model is used; nothing if it can be."""
    try:
        model = hw.load_model(folder)
        model.predict(CELLS)
        measure_quality(model, data)
    except HeadwiseError as error:
        return str(error) or "broken: it says nothing"
    except Exception as error:
        return f"broken: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("format", FILES)
def test_bytes_that_changed_are_noticed(home: Path, format: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home / format, tmp_path / "model"))
    rng, expected = random.Random(3), hw.load_model(folder).predict_proba(CELLS)
    for _ in range(COUNT):
        path = folder / rng.choice(["card.json", FILES[format]])
        whole = bytearray(path.read_bytes())
        spoilt = bytearray(whole)
        if rng.random() < 0.3:
            del spoilt[rng.randrange(len(spoilt)) :]
        else:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        with suppress(HeadwiseError):
            assert np.array_equal(hw.load_model(folder).predict_proba(CELLS), expected), (
                "only a last digit may not matter"
            )
        path.write_bytes(whole)


@pytest.mark.parametrize("format", FILES)
def test_files_that_were_damaged_and_hashed_again(home: Path, format: str, tmp_path: Path) -> None:
    """Other answers or a sentence, and nothing else."""
    folder, name = Path(shutil.copytree(home / format, tmp_path / "model")), FILES[format]

    @fuzzed
    @given(damaged((home / format / name).read_bytes()))
    def check(data: bytes) -> None:
        with_file(folder, name, data)
        said = outcome(folder, home / "data.toml")
        assert "\n" not in said and not said.startswith("broken"), said

    check()


def changed_program(program: Any, rng: random.Random) -> str:
    """Make a node another operator, give it another's inputs or attributes, or change a number or a shape."""
    nodes, tensors = program.graph.node, program.graph.initializer
    node, other = rng.choice(nodes), rng.choice(nodes)
    what = rng.choice(["operator", "inputs", "attributes", "number", "shape", "type"])
    if what == "operator":
        node.op_type = rng.choice(sorted(OPERATORS | {"Loop", "If", "Scan", "Optional", "ImageDecoder", ""}))
    elif what == "inputs":
        del node.input[:]
        node.input.extend(rng.sample([*other.input, *other.output, "x", ""], rng.randrange(1, 4)))
    elif what == "attributes":
        del node.attribute[:]
        node.attribute.extend(other.attribute)
    elif what == "number":
        for each in node.attribute:
            each.i = rng.choice([0, -1, 2**31, -(2**63), 2**63 - 1])
            each.ints[:] = [rng.choice([0, -1, 3, 2**40]) for _ in each.ints]
    elif what == "shape":
        tensor = rng.choice(tensors)
        tensor.dims[:] = rng.choice([[], [0], [-1], [1], [2**40, 2**40], [*tensor.dims, 1]])
    else:
        rng.choice(tensors).data_type = rng.randrange(30)
    return f"{what} of {node.name}"


def test_programs_that_somebody_changed(home: Path, tmp_path: Path) -> None:
    """Several changes each, all well-formed: what passes the lists must be refused or run by onnxruntime."""
    folder, rng = Path(shutil.copytree(home / "onnx", tmp_path / "model")), random.Random(11)
    whole = (home / "onnx" / FILES["onnx"]).read_bytes()
    refused = 0
    for _ in range(COUNT):
        program = onnx.ModelProto.FromString(whole)
        changes = [changed_program(program, rng) for _ in range(rng.randrange(1, 4))]
        with_file(folder, FILES["onnx"], program.SerializeToString())
        said = outcome(folder, home / "data.toml")
        refused += said != ""
        assert "\n" not in said and not said.startswith("broken"), f"{changes}: {said}"
    assert refused > 0
