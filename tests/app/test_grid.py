"""Grids of settings: a table for each federation, and each method's settings chosen on validation samples."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import headwise as hw
from headwise.app.compare import read_grid
from headwise.app.grid import GridCell, choose_best, parse_grid, split_grid
from headwise.cli import cli, main
from headwise.errors import ConfigError, RunError
from headwise.log.metrics import ACCURACY
from headwise.report.results import Line
from headwise.settings.experiment import Experiment, with_settings

SMALL = Experiment(clients=4, rounds=2, fraction=0.2)


def make_cell(validation: float | None, test: float) -> GridCell:
    scores = {"accuracy": test, ACCURACY.validation: validation, "clients": 4}
    run: Any = SimpleNamespace(rounds=[{"round": 1, "pre": scores}], metric=ACCURACY)
    return GridCell((), (("train.lr", test),), Line("fedavg", (run,)))


def test_settings_are_chosen_by_validation_not_by_test() -> None:
    cells = [make_cell(0.6, 0.9), make_cell(0.8, 0.2), make_cell(None, 1.0)]
    assert choose_best(cells, ACCURACY) is cells[1]


def test_no_validation_score_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedavg has no validation score with any setting of the grid"):
        choose_best([make_cell(None, 0.9), make_cell(None, 0.8)], ACCURACY)


def test_a_grid_gives_a_table_for_each_federation(tmp_path: Path) -> None:
    grid = {"partition": ["dirichlet:0.1", "iid"], "train.lr": [0.001, 0.2]}
    comparison = hw.compare(SMALL, ["fedavg", "fedrep"], 1, tmp_path / "grid", grid=grid)
    assert [setting.run.manifest["experiment"]["partition"]["name"] for setting in comparison.settings] == [
        "dirichlet",
        "iid",
    ]
    assert [line.name for line in comparison.setting.lines] == ["fedavg · lr=0.2", "fedrep · lr=0.2"]
    stored = json.loads((tmp_path / "grid" / "comparison.json").read_text())
    assert len(stored["grid"]) == 8
    for row in stored["grid"]:
        rivals = [
            other["validation"]
            for other in stored["grid"]
            if (other["method"], other["federation"]) == (row["method"], row["federation"])
        ]
        assert row["chosen"] == (row["validation"] == max(rivals))
    assert all(run.manifest["experiment"]["evaluate"]["validation"] == 0.2 for run in comparison.setting.lines[0].runs)
    assert any("set 20% of their training samples aside" in sentence for sentence in comparison.words())
    overview = comparison.overview()
    assert overview is not None
    assert overview.table[0] == ["method", "partition=dirichlet:0.1", "partition=iid"]
    page = (tmp_path / "grid" / "report.html").read_text()
    tex = (tmp_path / "grid" / "table.tex").read_text()
    for captioned in (overview, *comparison.tabulate_tried()):
        assert captioned.caption in page
        assert all(cell in page for row in captioned.table[1] for cell in row)
    assert "FedAvg (lr=0.2)" in tex
    assert tex.count("\\toprule") == 3, "methods by federations, and the results on each"
    first, second = comparison.tabulate_tried()
    assert [table.caption.partition(":")[0] for table in (first, second)] == ["partition=dirichlet", "partition=iid"]
    written = (tmp_path / "grid" / "table.md").read_text()
    titles = [table.caption for table in (overview, first, second)]
    titles += [f"{setting.title}, {setting.repeats}" for setting in comparison.settings]
    assert [line.removeprefix("### ") for line in written.splitlines() if line.startswith("#")] == titles
    assert any(s.startswith("train.lr=0.2, the best for fedavg, fedrep, is at the edge") for s in comparison.words())
    assert first.table[0] == ["method", "lr=0.001", "lr=0.2"]
    assert [sum("✓" in cell for cell in row) for table in (first, second) for row in table.table[1]] == [1] * 4


def test_a_grid_of_federations_alone_needs_no_validation(tmp_path: Path) -> None:
    comparison = hw.compare(SMALL, ["fedavg"], 1, tmp_path / "grid", grid={"clients": [3, 4]})
    assert [setting.run.manifest["experiment"]["clients"] for setting in comparison.settings] == [3, 4]
    assert comparison.validation is None
    assert comparison.setting.run.manifest["experiment"]["evaluate"]["validation"] == 0.0


def test_finished_cells_of_a_grid_are_not_repeated(tmp_path: Path) -> None:
    first = hw.compare(SMALL, ["fedavg"], 1, tmp_path / "grid", grid={"train.lr": [0.01, 0.1]})
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "grid").rglob("rounds.jsonl")}
    again = hw.compare(SMALL, ["fedavg"], 1, tmp_path / "grid", grid={"train.lr": [0.01, 0.1]})
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "grid").rglob("rounds.jsonl")} == before
    assert len(before) == 2
    assert again.to_plain() == first.to_plain()


def test_lists_are_a_grid_for_data_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for name in ("va", "rome")}
    comparison = hw.compare(clients, ["fedavg"], 1, tmp_path / "own", rounds=1, lr=[0.01, 0.1])
    assert [dict(cell.point) for cell in comparison.grid] == [{"train.lr": 0.01}, {"train.lr": 0.1}]


def test_a_method_has_its_own_options_in_a_grid(tmp_path: Path) -> None:
    comparison = hw.compare(SMALL, ["fedprox"], 1, tmp_path / "grid", grid={"method.mu": [0.01, 1.0]})
    experiments = [cell.line.runs[0].manifest["experiment"] for cell in comparison.grid]
    assert [experiment["method"]["mu"] for experiment in experiments] == [0.01, 1.0]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"train.lr": [0.1]}, r"grid has train\.lr = \[0\.1\], but must list at least two different values"),
        ({"train.lr": [0.1, 0.1]}, "at least two different values"),
        ({"seed": [0, 1]}, "grid names seed, which it can't vary: --seeds repeats"),
        ({"evaluate.metric": ["f1", "auc"]}, r"grid names evaluate\.metric, which it can't vary"),
        ({"method": ["fedavg", "fedrep"]}, "name the methods instead"),
        ({"train.learning_rate": [0.1, 0.2]}, r"train\.learning_rate is not a setting: did you mean 'lr'"),
        ({"train.lr": [0.1, -1]}, r"train\.lr is -1\.0, but must be above 0"),
        ({"method.nu": [0.1, 0.2]}, r"method\.nu is not a setting"),
        ({"partition": ["iid", "idi"]}, "partition is 'idi', which is not known"),
    ],
)
def test_a_wrong_grid_is_refused_before_any_run(grid: dict[str, list[Any]], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        hw.compare(SMALL, ["fedavg"], 1, tmp_path / "grid", grid=grid)
    assert not (tmp_path / "grid").exists()


def test_too_many_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="grid has 1,024 points, but at most 1,000 are allowed"):
        split_grid({"train.lr": list(range(1, 33)), "train.epochs": list(range(1, 33))})


@pytest.mark.parametrize("text", ["train.lr", "=1,2", "train.lr=", ""])
def test_a_malformed_option_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="but must look like"):
        parse_grid([text])


def test_short_names_are_those_of_fit() -> None:
    assert split_grid(parse_grid(["lr=0.01,0.1"])) == ([()], [(("train.lr", 0.01),), (("train.lr", 0.1),)])


def test_the_command_prints_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--clients", "3", "--rounds", "1", "--draws", "1", "--quiet", "--out", str(tmp_path / "grid")]
    with pytest.raises(SystemExit) as end:
        main(["compare", "fedavg", "--grid", "train.lr=0.01,0.1", *flags])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "lr=0.01" in text
    assert "✓" in text
    assert "chosen on validation samples; test samples decided nothing" in text


def test_changed_settings_keep_objects() -> None:
    def change(x: Any, y: Any, rng: Any) -> Any:
        return x, y

    before = Experiment(train={"augment": [change]}, method="fedprox:0.5")  # pyright: ignore[reportArgumentType]
    after = with_settings(before, {"train.lr": 1, "method.mu": 0.1, "engine.flower.cpus": 2, "model": "cnn"})
    assert after.train.augment[0].given is change
    assert (after.train.lr, type(after.train.lr)) == (1.0, float)
    assert after.method.options["mu"] == 0.1
    assert after.engine.flower.cpus == 2.0
    assert [choice.name for choice in after.model] == ["cnn"]
    with pytest.raises(ConfigError, match="rounds is not a table"):
        with_settings(before, {"rounds.more": 1})


def test_a_report_of_a_grids_folder_is_the_grids_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listed every point of the grid as a method."""
    grid = {"train.lr": [0.01, 0.1], "partition": ["iid", "dirichlet:10"]}
    comparison = hw.compare(SMALL, ["fedavg", "fedper"], 1, tmp_path / "grid", grid=grid)
    before = comparison.words(), comparison.tabulate_tried()
    (tmp_path / "grid").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    again = read_grid(Path("moved"))
    assert again is not None
    assert (again.words(), again.tabulate_tried()) == before
    printed = CliRunner().invoke(cli, ["report", "moved", "--table", "latex"]).output
    assert printed == (tmp_path / "moved" / "table.tex").read_text()
    CliRunner().invoke(cli, ["report", "moved", "-o", "page.html"])
    first = (tmp_path / "moved" / "report.html").read_text()
    assert Path("page.html").read_text() == first.replace(str(tmp_path / "grid"), "moved")


def test_the_main_table_of_a_grid_has_spreads_a_caption_and_a_label(tmp_path: Path) -> None:
    """--caption and --label went to the other tables only."""
    hw.compare(SMALL, ["fedavg", "fedper"], 2, tmp_path / "grid", grid={"partition": ["iid", "dirichlet:10"]})
    flags = ["--table", "latex", "--caption", "All of it", "--label", "tab:all"]
    main_table = CliRunner().invoke(cli, ["report", str(tmp_path / "grid"), *flags]).output.partition("\\end{table}")[0]
    assert "\\caption{All of it}" in main_table
    assert "\\label{tab:all}" in main_table
    assert main_table.count("$\\pm$") == 4


@pytest.mark.parametrize("grid", ["3", "[3]", '[{"runs": [".."]}]', '[{"runs": []}]'])
def test_a_damaged_grid_is_one_sentence(tmp_path: Path, grid: str) -> None:
    cell = grid.replace('{"runs"', '{"federation": {}, "settings": {}, "method": "m", "runs"')
    (tmp_path / "comparison.json").write_text(f'{{"grid": {cell}}}')
    with pytest.raises(RunError, match=r"comparison.json is damaged: it"):
        read_grid(tmp_path)
