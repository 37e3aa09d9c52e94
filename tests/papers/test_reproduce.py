"""Reproducing a table: what is run, what is written, and that a kill costs nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.cli import main
from headwise.engine.events import Event, Observer, RoundStarted
from headwise.errors import ConfigError
from headwise.papers.cells import ask_for, cells_of
from headwise.papers.cost import clock
from headwise.papers.reproduce import estimate, largest, reproduce, rows_of
from killed_runs import forks
from same_runs import rows

TINY = Path(__file__).parent / "tiny.toml"
TABLE = f"{TINY}/1"
Call = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def called(*args: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return called


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_is_run_and_put_beside_print(call: Call, tmp_path: Path) -> None:
    code, out, err = call("reproduce", TABLE, "--seeds", "2", "--out", "out", "--cells", "cells")
    assert code == 0
    rows = table(tmp_path / "out")
    assert [(r["method"], r["column"]) for r in rows] == [
        (m, c) for c in ("even", "even, rounds to 40 %", "skewed") for m in ("FedAvg", "FedProx")
    ]
    first = rows[0]
    prox = rows[1]
    runs = [hw.Run(p) for p in (tmp_path / "cells").glob("fedavg-synthetic-s*")]
    best = {r.manifest["experiment"]["seed"]: max(row["pre"]["accuracy"] for row in r.rounds) * 100
            for r in runs if r.manifest["experiment"]["partition"]["name"] == "iid"}  # fmt: skip
    assert float(first["ours"]) == pytest.approx(sum(best.values()) / 2)
    assert float(first["difference"]) == pytest.approx(float(first["ours"]) - 99)
    assert (first["seeds"], first["rounds"], first["moment"], prox["moment"]) == ("2", "8", "pre", "stale")
    assert float(first["floor"]) in [pytest.approx((r.floor or 0) * 100) for r in runs]
    assert all(r["standalone"] for r in rows), "every row has Standalone beside it"
    assert rows[4]["verdict"].startswith("nothing printed to compare with")
    assert rows[5]["verdict"] == "can't be compared: It was never run."
    page = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| FedAvg | even | 99.00 ± 0.50 |" in page
    assert "Everything is made up." in page
    assert "Scaled variant" not in page
    assert "runs to go, about" in err and "left for all" in err
    assert first["verdict"] in out
    assert len(list((tmp_path / "cells").iterdir())) == 3 * 2 * 2


def test_what_is_finished_is_not_run_again(call: Call, tmp_path: Path) -> None:
    args = ("reproduce", TABLE, "--columns", "even", "--cells", "cells", "--json")
    _, first, _ = call(*args)
    before = {p: p.read_bytes() for p in (tmp_path / "cells").rglob("*.json*")}
    code, again, err = call(*args)
    assert (code, again, err) == (0, first, "tiny/1, scale full: there is nothing to train.\n")
    assert {p: p.read_bytes() for p in (tmp_path / "cells").rglob("*.json*")} == before
    assert (tmp_path / "runs" / "reproduce" / "tiny-1" / "table.json").exists()
    assert "fig-accuracy" in (tmp_path / "runs" / "reproduce" / "tiny-1" / "report.html").read_text()


def test_scales_and_rules_are_marked(call: Call, tmp_path: Path) -> None:
    flags = ("--scale", "quick", "--rules", "code", "--quiet", "--columns", "even")
    code, out, err = call("reproduce", TABLE, *flags, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["scale"], answer["scaled"], answer["rules"]) == ("quick", True, "code")
    assert any(w.startswith("Scaled variant quick: half of the samples") for w in answer["words"])
    assert "Rules of the public code: The public code trains at a tenth of the rate." in answer["words"]
    rows = [r for r in answer["rows"] if r["column"] == "even"]
    assert [(r["rounds"], r["moment"]) for r in rows] == [(2, "pre"), (2, "pre")]
    assert all(r["verdict"].startswith("small scale, order of methods only") for r in rows)
    manifests = [hw.Run(p).manifest["experiment"] for p in Path("runs/reproduce/cells").iterdir()]
    assert {(m["train"]["batch"], m["train"]["lr"], m["fraction"]) for m in manifests} == {(8, 0.005, 0.5)}
    assert {m["method"]["mu"] for m in manifests if m["method"]["name"] == "fedprox"} == {0.0}
    assert (tmp_path / "runs/reproduce/tiny-1-quick-code/table.md").exists()


def test_settings_by_hand_are_marked_and_the_last_rounds_are_shown(call: Call) -> None:
    flags = ("--set", "rounds=6", "--columns", "even;skewed", "--methods", "fedavg", "--cells", "cells", "--quiet")
    code, out, err = call("reproduce", TABLE, *flags, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["scaled"], answer["changed"], answer["set"]) == (False, True, ["rounds=6"])
    first = next(r for r in answer["rows"] if r["column"] == "even")
    assert first["verdict"].startswith("other settings than the paper's, order of methods only")
    for row in answer["rows"]:
        (run,) = (
            r for p in Path("cells").glob("fedavg-*") if (r := hw.Run(p)).manifest["experiment"]["partition"]["name"]
            == ("iid" if row["column"].startswith("even") else "dirichlet")
        )  # fmt: skip
        scores = [r["pre"]["accuracy"] * 100 for r in run.rounds if "pre" in r]
        late = row["last_four"]
        assert late is None if "rounds" in row["column"] else late == pytest.approx(sum(scores[-4:]) / 4)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["tiny", "--columns", ";"], "columns is ';', but must name at least one; without --columns, all are taken."),
        (["tiny", "--methods", ""], "methods is '', but must name at least one; without --methods, all are taken."),
        (["fedgh"], "table is 'fedgh', which is a paper: its tables are fedgh/1, "),
        (["own"], "which is a paper: its tables are "),
    ],
    ids=["columns", "methods", "a paper", "a file"],
)
def test_a_mistake_is_one_sentence(call: Call, args: list[str], sentence: str) -> None:
    first = {"tiny": TABLE, "own": str(TINY)}.get(args[0], args[0])
    code, out, err = call("reproduce", first, *args[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_collected_cells_are_no_folder_for_runs(call: Call, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "fedavg-synthetic-s0-1.csv").write_text("round,moment,accuracy,client_mean\n")
    code, out, err = call("reproduce", TABLE, "--cells", "cells")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cells is 'cells', which holds collected cells: they can be drawn with --figure" in err
    assert len(list((tmp_path / "cells").iterdir())) == 1


def test_only_the_rounds_that_the_code_looks_at_count(tmp_path: Path) -> None:
    ask = ask_for(TABLE, columns=["skewed"], methods=["fedavg"], rules="code")
    (row,) = reproduce(ask, tmp_path / "out", cells=tmp_path / "cells").rows
    (run,) = (hw.Run(p) for p in (tmp_path / "cells").glob("fedavg-*"))
    curve = [r["pre"]["accuracy"] * 100 for r in run.rounds]
    assert row.mean == pytest.approx(max(curve[-3:]))
    assert row.others.startswith("stale ")


def reproduce_and_die(out: Path, cells: Path) -> None:
    """Be killed in the middle of the second cell."""
    titles: list[str] = []

    def die(event: Event) -> None:
        if len(titles) == 2 and isinstance(event, RoundStarted) and event.t == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(title: str) -> AbstractContextManager[list[Observer]]:
        titles.append(title)
        return nullcontext([die])

    reproduce(ask_for(TABLE, columns=["even"]), out, cells=cells, watch=watch)


def test_killed_in_the_middle_nothing_is_lost_or_run_twice(call: Call, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    a = tmp_path / "a"
    b = tmp_path / "b"
    process = forks().Process(target=reproduce_and_die, args=(killed, a))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert sorted(len(hw.Run(p).rounds) for p in a.iterdir()) == [3, 8], "the third cell had not begun"
    (done,) = (p for p in a.iterdir() if hw.Run(p).complete)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.rglob("*") if p.is_file()}
    command = ("reproduce", TABLE, "--columns", "even", "--quiet", "--out", "killed", "--cells", "a")
    assert call(*command)[0] == 0
    reproduce(ask_for(TABLE, columns=["even"]), tmp_path / "whole", cells=b)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.rglob("*") if p.is_file()} == before, (
        "not touched again"
    )
    assert sorted(p.name for p in a.iterdir()) == sorted(p.name for p in b.iterdir())
    for folder in a.iterdir():
        resumed, whole = (rows(hw.Run(f)) for f in (folder, b / folder.name))
        assert resumed == whole
        assert [row["round"] for row in resumed] == list(range(1, 9))
    assert table(killed) == table(tmp_path / "whole")


def test_a_table_that_is_not_finished_says_so(tmp_path: Path) -> None:
    ask = ask_for(TABLE, columns=["even"], methods=["fedavg"])
    assert [row.verdict for row in rows_of(ask, tmp_path, {})] == ["not run yet"]


def test_a_place_that_cannot_be_written_is_found_before_any_run(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = call("reproduce", TABLE, "--out", "file/out", "--quiet")
    assert (code, err) == (2, "headwise: file/out can't be written: Not a directory.\n")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_target_that_some_seeds_miss_is_not_reached(tmp_path: Path) -> None:
    text = TINY.read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(text.replace("target = 0.4", "target = 1.0"), encoding="utf-8")
    ask = ask_for(f"{tmp_path}/own.toml/1", columns=["even, rounds to 40 %"], methods=["fedavg"], seeds=2)
    (row,) = reproduce(ask, tmp_path / "out", cells=tmp_path / "cells").rows
    assert (row.ours, row.verdict) == ((), "not reached in 8 rounds")


def test_standalone_may_be_asked_for(tmp_path: Path) -> None:
    table = reproduce(ask_for(TABLE, columns=["skewed"], methods=["standalone"]), tmp_path / "o", cells=tmp_path / "c")
    (row,) = table.rows
    assert row.mean == row.standalone
    assert row.printed.missing


def test_the_estimate_counts_what_is_asked_for(tmp_path: Path) -> None:
    full, quick = (ask_for(TABLE, columns=["even"], scale=s) for s in ("full", "quick"))
    a, b = estimate([full, quick], tmp_path, None, None)
    assert len(a) == len(b) == len(cells_of(full)) == 3
    assert all(0 < y < x for x, y in zip(a, b, strict=True)), "fewer samples and rounds take less"


def test_a_budget_takes_the_largest_scale_that_fits() -> None:
    asks = [ask_for(TABLE, scale=s) for s in ("full", "quick")]
    assert largest(asks, [[30.0, 40.0], [5.0]], 80)[0] is asks[0]
    assert largest(asks, [[30.0, 40.0], [5.0]], 60) == (asks[1], [5.0])
    with pytest.raises(ConfigError, match=r"no scale of tiny/1 fits: full about 70 s, quick about 5 s"):
        largest(asks, [[30.0, 40.0], [5.0]], 4)


def test_times_are_said_as_people_say_them() -> None:
    assert [clock(s) for s in (0.2, 40, 600, 7000, 36_000)] == ["1 s", "40 s", "10 min", "117 min", "10 h"]


def test_a_plan_runs_nothing(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("reproduce", TABLE, "--budget", "1h", "--plan", "--columns", "even", "--json")
    answer = json.loads(out)
    assert (code, answer["scale"]) == (0, "full")
    assert [r["method"] for r in answer["runs"]] == ["Standalone", "FedAvg", "FedProx"]
    assert answer["seconds"] == pytest.approx(sum(r["seconds"] for r in answer["runs"]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["tiny/1"], "table is 'tiny/1', which is not known: allowed are"),
        (["nowhere.toml/1"], "nowhere.toml can't be read: No such file or directory."),
        ([f"{TINY}/3"], "Tiny has no such table: allowed are 1, 2."),
        ([TABLE, "--scale", "quik"], "scale is 'quik', which Tiny does not have: did you mean 'quick'?"),
        ([TABLE, "--rules", "cod"], "rules is 'cod': did you mean 'code'?"),
        ([TABLE, "--columns", "skewd"], "columns is 'skewd', which is not in the table: did you mean 'skewed'?"),
        ([TABLE, "--methods", "FedAvgg"], "methods is 'FedAvgg', which is not in the table: did you mean 'FedAvg'?"),
        ([TABLE, "--seeds", "0"], "seeds is 0, but must be from 1 to 10,000."),
        ([TABLE, "--workers", "many"], "workers is 'many', but must be auto, a number"),
        ([TABLE, "--budget", "soon"], "budget is 'soon', but must be a time such as 90s, 30m or 1h30m."),
        ([TABLE, "--budget", "1h", "--scale", "quick"], "but a budget chooses the scale: give only one of them."),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    args: list[str], sentence: str, call: Call, tmp_path: Path
) -> None:
    code, out, err = call("reproduce", *args)
    assert (code, out) == (2, "")
    assert err.startswith("headwise: ") and err.count("\n") == 1
    assert sentence in err
    assert not list(tmp_path.iterdir())
