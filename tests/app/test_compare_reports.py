"""``headwise report`` on a comparison's folder shows what `compare` showed, whatever else lies there."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import headwise as hw
from headwise.app.compare import Comparison
from headwise.cli import cli
from headwise.errors import HeadwiseError
from headwise.report.tables import to_csv

METHOD = Path(hw.__file__).parent / "methods" / "fedavg.py"
TRAINS = METHOD.read_text()
IDLES = TRAINS.replace("local.sgd(m)", "pass")
CRASHES = TRAINS.replace("local.sgd(m)", "raise ValueError")


def compare(text: str, draws: int = 2, *methods: str, out: str = "out") -> Comparison:
    Path("fed_avg.py").write_text(text)
    base = hw.Experiment(data="synthetic:80:4:8", clients=3, rounds=2, engine={"workers": 1})
    return hw.compare(base, [*(methods or ("standalone", "fed_avg.py"))], draws, out)


def report(*args: str, form: str = "csv") -> Result:
    result = CliRunner().invoke(cli, ["report", *args, "--table", form])
    assert result.exit_code == 0, result.output
    return result


def rows_of(text: str) -> list[list[str]]:
    return sorted(csv.reader(io.StringIO(text)))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("order", [(TRAINS, IDLES), (IDLES, TRAINS), (TRAINS, IDLES, TRAINS)])
def test_report_shows_the_version_that_was_compared_last(order: tuple[str, ...], draws: int) -> None:
    for text in order:
        comparison = compare(text, draws)
    result = report("out")
    assert rows_of(result.stdout) == rows_of(to_csv(comparison.table()))
    runs = f"{draws} run{'s' * (draws > 1)}"
    assert result.stderr == f"left out: out has {runs} outside its last comparison: {draws} with other code.\n"
    assert report("out", form="latex").stdout == Path("out/table.tex").read_text()
    CliRunner().invoke(cli, ["report", "out", "-o", "page.html"])
    assert f"Left out: out has {runs} outside" in Path("page.html").read_text()


@pytest.mark.parametrize("draws", [1, 2])
def test_a_crashed_run_does_not_replace_one_of_the_fixed_file(draws: int) -> None:
    with pytest.raises(HeadwiseError):
        compare(CRASHES, draws)
    assert ["fed_avg.py", "", ""] in [row[:3] for row in rows_of(report("out").stdout)]
    comparison = compare(TRAINS, draws)
    result = report("out")
    assert rows_of(result.stdout) == rows_of(to_csv(comparison.table()))
    assert result.stderr == "left out: out has 1 run outside its last comparison: 1 unfinished.\n"


def test_runs_of_fewer_draws_and_methods_are_left_out_with_their_reason() -> None:
    compare(TRAINS, 2)
    compare(IDLES, 1, "fed_avg.py")
    assert report("out").stderr == (
        "left out: out has 4 runs outside its last comparison: 2 with other code, 2 of other methods, settings or "
        "draws.\n"
    )


def test_without_a_comparison_versions_are_rows_of_their_own() -> None:
    compare(TRAINS)
    compare(IDLES)
    Path("out/comparison.json").unlink()
    codes = sorted({re.findall(r"-(\w{8})-d", path.name)[0] for path in Path("out").glob("fed_avg.py-*")})
    assert len(codes) == 2
    names = [row[0] for row in rows_of(report("out").stdout)]
    assert [name for name in names if name.startswith("fed")] == [f"fed_avg.py · code={code}" for code in codes]


def test_rows_are_named_as_in_the_comparison_also_for_equal_settings() -> None:
    methods = ["fed_avg.py", "fed_avg.py:weights=samples", "fed_avg.py:weights=clients"]
    compare(TRAINS, 1, *methods)
    assert [row[0] for row in rows_of(report("out").stdout) if row[0].startswith("fed")] == sorted(methods)


def test_files_with_one_title_are_different_rows_of_a_paper() -> None:
    for name in ("fed_one.py", "fed_two.py"):
        text = TRAINS.replace("class FedAvg", f"class {name.removesuffix('.py').title().replace('_', '')}")
        Path(name).write_text(text)
    compare(TRAINS, 1, "fed_one.py", "fed_two.py", "standalone")
    text = report("out", form="latex").stdout
    assert text == Path("out/table.tex").read_text()
    assert "FedAvg (fed\\_one.py) &" in text and "FedAvg (fed\\_two.py) &" in text


def test_a_run_of_the_grid_that_is_not_listed_is_mentioned() -> None:
    base = hw.Experiment(data="synthetic:80:4:8", clients=3, rounds=2, engine={"workers": 1})
    for text in (TRAINS, IDLES):
        Path("fed_avg.py").write_text(text)
        hw.compare(base, ["fed_avg.py"], 1, "out", grid={"train.lr": [0.01, 0.1]})
    assert report("out").stderr == "left out: out has 2 runs outside its last comparison: 2 with other code.\n"
