"""Names that come from data or from a stranger's card: in files, folders and spreadsheets."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_runs import rewrite, small_run

import headwise as hw
from headwise.cli import main
from headwise.disk.jsontext import csv_cell


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    return small_run(home / "run", "fedrep", rounds=1).model(0).save(home / "onnx")


def code(*words: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_class_names_of_a_card_do_no_harm_in_a_csv(exported: Path, tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(A1)", "\x1b[2J\r\nx", "-1.5", "ok", "\t=1", "+7e2", "ü"]
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    rewrite(folder, lambda card: card.update(classes=names))
    np.savez(tmp_path / "new.npz", x=np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32))
    assert code("predict", folder, tmp_path / "new.npz", "-o", tmp_path / "out.csv", "--quiet") == 0
    data = (tmp_path / "out.csv").read_bytes()
    assert not {*data} & {*range(32)} - {10, 13}, "no control characters but the ends of lines"
    head, *rows = csv.reader(data.decode().splitlines())
    assert len(rows) == 200, "no name made a line of its own"
    cells = [cell for row in (head, *rows) for cell in row]
    for cell in cells:
        assert not cell.startswith(("=", "@", "\t")), cell
        if cell.startswith(("+", "-")):
            float(cell)
    assert all(float(row[2]) >= 0 for row in rows), "numbers stay numbers"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("-1", "-1"),
        ("-1e3", "-1e3"),
        ("- 1", "'- 1"),
        (-1.5, -1.5),
        ("+49 30", "'+49 30"),
        ("a\x00b\u2028", "a\\x00b\\u2028"),
        ("\n=1", "\\n=1"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_cells(value: Any, cell: Any) -> None:
    assert csv_cell(value) == cell


def test_all_models_are_written_whatever_the_clients_are_called(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = ["a", "b", "x" * 300, "x" * 299 + "y", "ü" * 200, "../up", ".hidden", "c/d", "\n", "con"]
    data = {name: (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for name in names}
    run = hw.fit(data, method="fedavg", rounds=1, out=tmp_path / "run")
    assert code("export", run.path, "--all", "--format", "torch", "-o", tmp_path / "models", "--quiet") == 0
    folders = sorted((tmp_path / "models").iterdir())
    assert len(folders) == len(names)
    assert {hw.load_model(folder).card["of"]["name"] for folder in folders} == {*names}
