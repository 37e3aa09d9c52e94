"""Curve figures from runs and from collected cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headwise.errors import RunError
from headwise.papers.cells import Ask, ask_for, cells_of, with_settings
from headwise.papers.figure import collect_curves, missing_methods, write_curves
from headwise.papers.reproduce import curve, reproduce
from headwise.runs.query import Run

TABLE = f"{Path(__file__).parent / 'tiny.toml'}/1"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figure")
    reproduce(ask(), folder / "out", cells=folder / "cells")
    return folder / "cells"


def ask() -> Ask:
    return ask_for(TABLE, columns=["skewed"], methods=["fedavg", "fedprox"])


def test_curves_are_those_of_the_runs(cells: Path) -> None:
    lines = collect_curves(ask(), ask().columns[0], cells)
    assert list(lines) == ["Standalone", "FedAvg", "FedProx"]
    (run,) = (Run(cells / c.folder) for c in cells_of(ask()) if c.method == "FedAvg")
    assert lines["FedAvg"] == [(t, 100 * value) for t, value in curve(run, "pre", "accuracy") if t]


def test_a_figure_shows_every_method_and_the_floor(cells: Path, tmp_path: Path) -> None:
    written = write_curves(ask(), cells, tmp_path)
    assert [p.name for p in written] == ["skewed.svg", "skewed.pdf"]
    svg = written[0].read_text(encoding="utf-8")
    for text in ("Tiny, 1: skewed", "Standalone", "FedAvg", "FedProx", "floor: guessing", "round", "accuracy in %"):
        assert f">{text}</text>" in svg, text


def test_collected_cells_give_the_same_figure(cells: Path, tmp_path: Path) -> None:
    collected = tmp_path / "collected"
    collected.mkdir()
    for cell in cells_of(ask()):
        run = Run(cells / cell.folder)
        lines = ["round,moment,accuracy,client_mean"]
        for moment in ("pre", "stale"):
            means = dict(curve(run, moment, "client_mean"))
            lines += [f"{t},{moment},{v!r},{means[t]!r}" for t, v in curve(run, moment, "accuracy")]
        (collected / f"{cell.folder}.csv").write_text("\n".join(lines) + "\n")
        curves = {m: curve(run, m, "accuracy") for m in ("pre", "stale")}
        summary = {"floor": run.manifest["partition"]["floor"], "curves": curves}
        (collected / f"{cell.folder}.json").write_text(json.dumps(summary))
    (first, _), (second, _) = (write_curves(ask(), place, tmp_path / place.name) for place in (cells, collected))
    assert first.read_bytes() == second.read_bytes()


def test_without_cells_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no finished cell of these columns of tiny/1 with exactly these rules"):
        write_curves(ask(), tmp_path / "none", tmp_path / "out")
    with pytest.raises(RunError, match=r"^fedgh/2 has no curves: no accuracy is measured in these columns\.$"):
        write_curves(ask_for("fedgh/2"), tmp_path / "none", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_figure_says_what_is_not_the_papers_and_keeps_a_methods_colour(cells: Path, tmp_path: Path) -> None:
    texts = []
    for few in ([], ["evaluate.every=1"]):
        one = with_settings(ask_for(TABLE, columns=["skewed"], methods=["fedprox"]), few)
        texts.append(write_curves(one, cells, tmp_path / str(len(few)))[0].read_text(encoding="utf-8"))
    both = write_curves(ask(), cells, tmp_path / "both")[0].read_text(encoding="utf-8")
    colours = [re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: [12]\.2", text) for text in (texts[0], both)]
    assert colours[0][1] == colours[1][2] != colours[1][1]
    assert ">evaluate.every=1</text>" not in texts[0]
    assert ">evaluate.every=1</text>" in texts[1]


def test_methods_without_a_curve_are_named(cells: Path) -> None:
    more = ask_for(TABLE, columns=["skewed"], methods=["fedavg", "fedprox", "Standalone"])
    other = ask_for(TABLE, columns=["skewed"], methods=["fedavg"], seeds=2)
    assert missing_methods(more, more.columns[0], cells) == []
    assert missing_methods(other, other.columns[0], cells) == ["FedAvg"]


@pytest.mark.parametrize(
    "content",
    [
        b"round,moment\n1,stale\n",
        b"round,moment,accuracy\none,stale,0.5\n",
        b"round,moment,accuracy\n1,stale\n",
        b"\xff\n",
    ],
    ids=["no column", "no number", "short row", "no text"],
)
def test_a_damaged_cell_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / f"{cells_of(ask())[0].folder}.csv"
    file.write_bytes(content)
    with pytest.raises(RunError) as error:
        collect_curves(ask(), ask().columns[0], tmp_path)
    assert str(error.value) == f"{file} is damaged: it is not a table of rounds, moments and accuracies."


CURVES = '"curves": {"stale": [[1, 0.5], [2, 0.6]]}'


@pytest.mark.parametrize(
    ("summary", "says"),
    [
        ("{}", r"\.json is damaged: it has no curves\.$"),
        ("[]", r"\.json is damaged: it has no curves\.$"),
        ('{"curves": [1]}', r"\.json is damaged: it has no curves\.$"),
        (f'{{"floor": 1, {CURVES}}}', r"\.json is damaged: it has no floor\.$"),
        (f'{{"floor": {{"weighted": "high"}}, {CURVES}}}', r"\.json is damaged: it has no floor\.$"),
    ],
)
def test_a_damaged_summary_is_named(tmp_path: Path, summary: str, says: str) -> None:
    cell = tmp_path / cells_of(ask())[0].folder
    cell.with_name(f"{cell.name}.csv").write_text("round,moment,accuracy\n1,stale,0.5\n2,stale,0.6\n")
    cell.with_name(f"{cell.name}.json").write_text(summary)
    with pytest.raises(RunError, match=says):
        write_curves(ask(), tmp_path, tmp_path / "out")


@pytest.mark.parametrize("table", ["round,moment,accuracy\n1,stale,0.5\n", None], ids=["cut off", "missing"])
def test_a_curve_that_is_not_complete_is_not_drawn(tmp_path: Path, table: str | None) -> None:
    cell = tmp_path / cells_of(ask())[0].folder
    cell.with_name(f"{cell.name}.json").write_text(f'{{"floor": {{"weighted": 0.1}}, {CURVES}}}')
    if table is not None:
        cell.with_name(f"{cell.name}.csv").write_text(table)
    with pytest.raises(RunError, match=r"\.csv is not complete: it lacks evaluations \(stale\) that .*\.json lists\.$"):
        write_curves(ask(), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
