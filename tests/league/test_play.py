"""Leagues of tiny federations: cells are run once, can be repeated alone, and are added by files."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headwise.app.prepare import prepare
from headwise.app.tune import tune
from headwise.cli import cli
from headwise.disk.files import lock_folder
from headwise.errors import ConfigError, DataError, RunError
from headwise.league import cells as league_cells
from headwise.league import play as playing
from headwise.league.cells import (
    LeagueCell,
    Result,
    find_federations,
    list_federations,
    list_versions,
    read_csv,
    read_federation,
    read_result,
    run_cell,
)
from headwise.league.play import play, write_league

TINY = """title = "Two clients"
kind = "tiny"
[experiment]
data = {name = "synthetic", samples = 80, classes = 2, sites = 2}
partition = "natural"
split = "12:3:5"
rounds = 2
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def results_of(folder: Path) -> list[Result]:
    return [read_result(path) for path in sorted((folder / "cells").glob("*/*.json"))]


def test_cells_are_run_once_and_written_as_a_table_and_a_page(tiny: Path, tmp_path: Path) -> None:
    federations = find_federations("v1", [str(tiny)])
    out = tmp_path / "out"
    lines: list[str] = []
    league = play(federations, out, tmp_path, methods=["standalone", "fedavg"], draws=[0, 1], note=lines.append)
    assert [(r.method, r.draw) for r in league.results] == [
        *(("standalone", 0), ("fedavg", 0), ("standalone", 1), ("fedavg", 1))
    ]
    assert len(lines) == 4
    assert all(r.mean_client is not None and len(r.scores) == 2 and r.same_clients for r in league.results)
    write_league(league, out)
    assert [r.mean_client for r in read_csv(out / "league.csv")] == pytest.approx(
        [r.mean_client for r in sorted(league.results, key=lambda r: (r.method, r.draw))], abs=1e-4
    )
    assert "Two clients" not in (out / "league.html").read_text()  # names and kinds only
    again = play(federations, out, tmp_path, methods=["standalone", "fedavg"], draws=[0, 1], note=lines.append)
    assert len(lines) == 4
    assert again.results == league.results


def test_what_is_not_run_has_a_command_that_runs_it_alone(tiny: Path, tmp_path: Path) -> None:
    federations = find_federations("v1", [str(tiny)])
    league = play(federations, tmp_path / "out", tmp_path, methods=["fedavg"], draws=[0, 1], run=False)
    assert not league.results
    assert league.words()[0] == f"2 cells not run yet; the first: {league.missing[0]}"
    words = shlex.split(league.missing[1])
    done = CliRunner().invoke(cli, [*words[1:], "--keep-runs"])
    assert done.exit_code == 0, done.output
    assert [(r.method, r.draw) for r in results_of(tmp_path / "out")] == [("fedavg", 1)]
    assert "mean client" in done.output and "worst tenth" in done.output, "the table of the only federation"
    assert "A star marks what can't be told apart from the best" in done.output
    assert (tmp_path / "out" / "runs" / "tiny" / "fedavg-default-d1" / "manifest.json").exists()


MINE = '"""Mine — me, 2026."""\nfrom headwise.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    """Mine."""\n'


def league_of(*args: str) -> str:
    done = CliRunner().invoke(cli, ["league", *args, "--quiet"])
    assert done.exit_code == 0, done.output
    return done.output


def shown(folder: Path) -> list[tuple[str, str, int]]:
    return [(r.federation, r.method, r.draw) for r in read_csv(folder / "league.csv")]


def test_the_tables_show_the_whole_folder_whatever_was_asked_for_last(tiny: Path, tmp_path: Path) -> None:
    own, out, other = tmp_path / "mine.py", tmp_path / "out", tmp_path / "other.toml"
    own.write_text(MINE)
    other.write_text(TINY)
    league_of(str(tiny), str(other), "--methods", f"fedavg,standalone,{own}", "--draws", "1", "--out", str(out))
    everything = [
        (name, method, 0) for name in ("other", "tiny") for method in sorted(["fedavg", "standalone", str(own)])
    ]
    assert shown(out) == everything

    league_of(str(tiny), str(other), "--methods", "standalone", "--draws", "1", "--out", str(out))
    assert shown(out) == everything
    assert "mine.py" in (out / "league.html").read_text()

    said = league_of(str(tiny), "--methods", "standalone", "--draws", "1", "--out", str(out))
    assert shown(out) == [cell for cell in everything if cell[0] == "tiny"]
    assert "The tables leave out other federations in the folder: other; name their files." in said


def test_where_nothing_has_changed_there_is_a_sentence_and_no_table(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TINY)
    ask = ["--methods", "fedavg", "--draws", "1", "--out", str(tmp_path / "out")]
    league_of(str(tiny), *ask)
    against = ["--against", str(tmp_path / "before.csv")]
    (tmp_path / "out" / "league.csv").rename(tmp_path / "before.csv")
    same = league_of(str(tiny), *ask, *against)
    assert "1 pair of a method and a federation is in both leagues: 1 with the same scores" in same
    apart = league_of(str(other), *ask, *against)
    assert "No method is on the same draws of the same federation in both leagues." in apart
    assert "Changes" not in same + apart


def test_results_of_edited_files_are_not_shown(tiny: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "mine.py", tmp_path / "out"
    own.write_text(MINE)
    league_of(str(tiny), "--methods", f"fedavg,{own}", "--draws", "1", "--out", str(out))
    own.write_text(MINE + "# edited\n")
    said = league_of(str(tiny), "--methods", "fedavg", "--draws", "1", "--out", str(out))
    assert shown(out) == [("tiny", "fedavg", 0)]
    assert f"has changed since, or is not here: {own} on tiny." in said

    said = league_of(str(tiny), "--methods", str(own), "--draws", "1", "--out", str(out))
    assert sorted(shown(out)) == sorted([("tiny", str(own), 0), ("tiny", "fedavg", 0)])
    assert "has changed since" not in said, "it was run again"

    own.unlink()
    tiny.write_text(TINY.replace("rounds = 2", "rounds = 3"))
    said = league_of(str(tiny), "--methods", "standalone", "--draws", "1", "--out", str(out))
    assert shown(out) == [("tiny", "standalone", 0)]
    assert f"or is not here: {own} on tiny, fedavg on tiny." in said


def test_cells_that_run_at_the_same_time_have_the_same_results(tiny: Path, tmp_path: Path) -> None:
    federations = find_federations("v1", [str(tiny)])
    lines: list[str] = []
    leagues = [
        play(federations, tmp_path / str(n), tmp_path, methods=["fedavg", "fedah"], workers=n, note=lines.append)
        for n in (1, 2)
    ]
    alone, together = ([replace(r, cpu_seconds=None) for r in league.results] for league in leagues)
    assert together == alone
    assert len(lines) == 2 * 10
    assert lines[-1].startswith("10 of 10: tiny, ")


def test_a_cell_whose_process_is_killed_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    own = tmp_path / "killed.py"
    own.write_text(
        '"""Killed — me, 2026."""\nimport os\n\nfrom headwise.methods.fedavg import FedAvg\n\n\n'
        'class Killed(FedAvg):\n    """Killed."""\n\n    def client_init(self, local):\n        os._exit(9)\n'
    )
    with pytest.raises(RunError, match="was killed: repeat the command"):
        play(find_federations("v1", [str(tiny)]), tmp_path / "out", tmp_path, methods=[str(own)], workers=2)
    assert not (tmp_path / "out" / "cells").exists()


def test_a_method_of_ones_own_takes_part_and_gets_a_new_cell_when_it_is_edited(tiny: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(MINE)
    federation = find_federations("v1", [str(tiny)])[0]
    first = LeagueCell(federation, str(own), 0)
    assert run_cell(first, tmp_path / "out", tmp_path, keep=False).mean_client is not None
    before = first.path(tmp_path / "out")
    own.write_text(own.read_text() + "# edited\n")
    assert first.path(tmp_path / "out") != before


def test_why_a_method_can_not_run_is_a_result(tmp_path: Path) -> None:
    path = tmp_path / "numbers.toml"
    path.write_text(TINY.replace("classes = 2", 'task = "regression"'))
    federation = read_federation(path, str(path))
    result = run_cell(LeagueCell(federation, "fedproto", 0), tmp_path / "out", tmp_path, keep=False)
    assert result.mean_client is None
    assert "fedproto" in result.error.lower()


def test_what_is_wrong_with_the_disk_is_no_result(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunError("the disk is full.")

    monkeypatch.setattr(league_cells, "run_to_end", fail)
    cell = LeagueCell(find_federations("v1", [str(tiny)])[0], "fedavg", 0)
    with pytest.raises(RunError, match="the disk is full"):
        run_cell(cell, tmp_path / "out", tmp_path, keep=False)
    assert not cell.path(tmp_path / "out").exists()


def test_a_cell_that_another_process_is_running_is_left_to_it(tiny: Path, tmp_path: Path) -> None:
    cell = LeagueCell(find_federations("v1", [str(tiny)])[0], "fedavg", 0)
    place = tmp_path / "out" / "running" / "tiny" / "fedavg-default-d0"
    place.mkdir(parents=True)
    with lock_folder(place), pytest.raises(RunError, match="is being written by another process"):
        run_cell(cell, tmp_path / "out", tmp_path, keep=False)
    assert run_cell(cell, tmp_path / "out", tmp_path, keep=False).mean_client is not None


def test_a_federation_without_its_data_is_left_out(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(experiment: object, data_dir: Path) -> object:
        raise DataError("no such data.")

    out = ["--methods", "fedavg", "--draws", "1", "--out", str(tmp_path / "out")]
    league_of(str(tiny), *out)
    before = (tmp_path / "out" / "league.csv").read_bytes()
    monkeypatch.setattr(playing, "prepare", refuse)
    assert "Not run: tiny. no such data.\n" in league_of(str(tiny), *out)
    assert (tmp_path / "out" / "league.csv").read_bytes() == before, "its results stay"

    alone = CliRunner().invoke(cli, ["league", str(tiny), "--out", str(tmp_path / "new")])
    assert isinstance(alone.exception, DataError)
    assert str(alone.exception) == "no federation can be run, since their data are missing: tiny: no such data."
    assert not (tmp_path / "new" / "league.csv").exists()


def test_a_folder_with_cells_of_another_federation_is_refused(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    play(find_federations("v1", [str(tiny)]), out, tmp_path, methods=["standalone"], draws=[0])
    tiny.write_text(TINY.replace("rounds = 2", "rounds = 3"))
    with pytest.raises(ConfigError, match=rf"^{tiny} has changed since .* was run: choose another --out\.$"):
        play(find_federations("v1", [str(tiny)]), out, tmp_path, methods=["standalone"], draws=[0])


def test_a_damaged_cell_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    path.write_text('{"federation": "tiny"}')
    with pytest.raises(RunError, match="not the result of a cell"):
        read_result(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TINY.replace("kind", "sort"), "sort is not part of a federation: allowed are experiment, kind, title"),
        (TINY.replace("kind = ", "kid = "), "kid is not part of a federation: did you mean 'kind'?"),
        (TINY.replace('kind = "tiny"', ""), "kind is missing; it must have a title, a kind and a table"),
        (TINY.replace('"tiny"', "3"), "kind is 3, but must be a text"),
        (TINY + "seed = 3\n", "sets seed, which the league decides"),
        (TINY.replace("rounds", "runds"), "rounds"),
        (TINY.split("[experiment]")[0] + "experiment = 3\n", "experiment is 3, but must be a table"),
    ],
)
def test_a_wrong_federation_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_federation(path, str(path))


def test_wrong_names_are_refused_before_the_first_run(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label-skew"):
        find_federations("v1", ["label-skw"])
    with pytest.raises(ConfigError, match="version is 'v0'"):
        find_federations("v0", [])
    with pytest.raises(ConfigError, match="must be default, tuned"):
        play(find_federations("v1", [str(tiny)]), tmp_path / "out", tmp_path, settings=["best"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", list_federations("v1"))
def test_every_federation_can_be_read(name: str) -> None:
    assert find_federations("v1", [name])[0].experiment("fedah", 3).data_seed == 3


@pytest.mark.parametrize("name", ["label-skew", "few-samples", "quantity-skew", "strangers", "many-clients"])
def test_embedded_federations_need_no_files(name: str, tmp_path: Path) -> None:
    assert prepare(find_federations("v1", [name])[0].experiment("fedavg", 0), tmp_path).summary.val


def test_there_is_a_version() -> None:
    assert list_versions() == ["v1"]
    assert len(list_federations("v1")) == 10


def test_tuning_can_stop_trials_early(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are measured in the last round only; their searches were, too, so every trial ran to its end."""
    tiny.write_text(TINY.replace("rounds = 2", "rounds = 16"))
    [federation] = find_federations("v1", [str(tiny)])
    ended: list[int] = []

    def watch_tune(*args: Any, **options: Any) -> Any:
        result = tune(*args, **options)
        ended.extend(trial["rounds"] for trial in result.trials)
        return result

    monkeypatch.setattr(league_cells, "tune", watch_tune)
    result = run_cell(LeagueCell(federation, "fedavg", 0, "tuned"), tmp_path / "out", tmp_path, keep=False)
    assert result.mean_client is not None
    assert len(ended) == 10
    assert max(ended) == 16
    assert min(ended) < 16


def test_results_of_another_version_are_not_in_the_tables(tiny: Path, tmp_path: Path) -> None:
    federations = find_federations("v1", [str(tiny)])
    out = tmp_path / "out"
    play(federations, out, tmp_path, methods=["standalone", "fedavg"], draws=[0])
    cell = LeagueCell(federations[0], "fedavg", 0).path(out)
    before = read_result(cell)
    cell.write_text(json.dumps({**before.to_plain(), "numerics": before.numerics - 1}))
    league = play(federations, out, tmp_path, methods=["standalone"], draws=[0])
    assert [r.method for r in league.results] == ["standalone"]
    assert league.older == ("fedavg on tiny",)
