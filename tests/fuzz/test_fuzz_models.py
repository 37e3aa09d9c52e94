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
import pytest

import headwise as hw
from headwise.disk.files import sealed, write_json
from headwise.errors import HeadwiseError
from headwise.exports.quality.judging import judge

COUNT = int(os.environ.get("HEADWISE_FUZZ", "60")) // 3
STRANGE: tuple[Any, ...] = (
    None, -1, 10**30, 0.5, "", "x", "__import__('os').mkdir('evil')", "../../evil", [], {}, [None], [[0]], True,
    {"a": {"b": []}}, "{{ 7*7 }}", "<script>",
)  # fmt: skip
CELLS = {"age": [3, ""], "sex": ["f", "z"]}
TABLE = "who,age,sex,ill\n" + "".join(f"{'ab'[k % 2]},{k % 7},{'fm'[k % 3 > 0]},{'yn'[k % 7 > 2]}\n" for k in range(40))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    (home / "t.csv").write_text(TABLE)
    text = 'format = "csv"\npath = "t.csv"\nclient = "who"\ntarget = "ill"\n'
    (home / "data.toml").write_text(text + '[features]\nnumber = ["age"]\ncategory = ["sex"]\n')
    run = hw.run(hw.Experiment(method="fedavg", data=str(home / "data.toml"), model="mlp:3", rounds=1), home / "run")  # pyright: ignore[reportArgumentType]
    run.model("a").save(home / "whole", "torch")
    return home


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


def test_cards_that_somebody_changed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hashes are right; nothing runs, and nothing but a sentence is raised."""
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(home / "whole", tmp_path / "model"))
    whole, rng, refused = (folder / "card.json").read_text(), random.Random(7), 0
    for _ in range(COUNT):
        card, what = changed(json.loads(whole), rng)
        write_json(folder / "card.json", sealed(card))
        said = outcome(folder, home / "data.toml")
        refused += said != ""
        assert "\n" not in said and not said.startswith("broken"), f"{what}: {said}"
        assert [p.name for p in tmp_path.iterdir()] == ["model"], what
    assert 0 < refused < COUNT


def outcome(folder: Path, data: Path) -> str:
    """What is said when the model is used; nothing if it can be."""
    try:
        model = hw.load(folder)
        model.predict(CELLS)
        judge(model, data)
    except HeadwiseError as error:
        return str(error) or "broken: it says nothing"
    except Exception as error:
        return f"broken: {type(error).__name__}: {error}"
    return ""


def test_bytes_that_changed_are_noticed(home: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home / "whole", tmp_path / "model"))
    rng, wanted = random.Random(3), hw.load(folder).predict_proba(CELLS)
    for _ in range(COUNT):
        path = folder / rng.choice(["card.json", "model.pt2", "weights.safetensors"])
        whole = bytearray(path.read_bytes())
        spoilt = bytearray(whole)
        if rng.random() < 0.3:
            del spoilt[rng.randrange(len(spoilt)) :]
        else:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        with suppress(HeadwiseError):
            assert np.array_equal(hw.load(folder).predict_proba(CELLS), wanted), "only a last digit may not matter"
        path.write_bytes(whole)
