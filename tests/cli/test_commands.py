"""What the commands print and write when they succeed."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from saying import Headwise, small, snapshot

import headwise as hw
from headwise.app import registry
from headwise.cli import VERBS
from headwise.settings.names import list_names
from waiting import PATIENCE

PYTHON = sys.executable


def test_help_of_compare_does_not_contradict_itself(headwise: Headwise) -> None:
    said = " ".join(headwise("compare", "--help").out.split())
    assert "folder for the results; new, or the one to continue" in said
    assert "folder for the results; it must be new" in " ".join(headwise("run", "--help").out.split())


def test_help_names_every_command(headwise: Headwise) -> None:
    said = headwise("--help")
    assert (said.code, said.err) == (0, "")
    for verb in VERBS:
        assert re.search(rf"^  {verb} +\w", said.out, re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help(verb: str, headwise: Headwise) -> None:
    said = headwise(verb, "-h")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: headwise {verb} ")


def test_without_a_command_there_is_help(headwise: Headwise) -> None:
    said = headwise()
    assert said.code == 2
    assert said.err.startswith("Usage: headwise")


def test_version(headwise: Headwise) -> None:
    code, said, _ = headwise("--version")
    version, kernels = said.splitlines()
    assert (code, version) == (0, f"headwise, version {hw.__version__}")
    assert re.fullmatch("kernels: (native, [a-z0-9]+|torch: .+)", kernels)


@pytest.mark.parametrize(
    ("kind", "known"),
    [("methods", "fedavg"), ("models", "cnn"), ("data", "digits"), ("partitions", "dirichlet"), ("papers", "fedgmh/2")],
)
def test_lists_name_everything(kind: str, known: str, headwise: Headwise) -> None:
    said = headwise("list", kind, "--json")
    assert (said.code, said.err) == (0, "")
    rows = json.loads(said.out)[kind]
    assert known in [row["name"] for row in rows]
    assert all(row["summary"] for row in rows), "everything says what it is"
    text = headwise("list", kind).out.splitlines()
    assert [line.split()[0] for line in text] == ["name", *(row["name"] for row in rows)]


def test_listed_runs_are_those_that_there_are(headwise: Headwise) -> None:
    assert headwise("list", "runs").out == "There are no runs in runs.\n"
    assert json.loads(headwise("list", "runs", "--json").out) == {"runs": []}
    for _ in range(2):
        headwise(*small(), "--quiet")
    rows = json.loads(headwise("list", "runs", "--json").out)["runs"]
    assert [row["run"] for row in rows] == ["runs/fedavg-synthetic-s0", "runs/fedavg-synthetic-s0-2"]
    assert rows[0]["metric"] == "accuracy"
    assert rows[0]["last"] == rows[1]["last"] != ""
    assert {row["ended"] for row in rows} == {"finished"}
    assert headwise("list", "runs").out.count("fedavg-synthetic-s0") == 2


@pytest.mark.parametrize("damage", ["{", "{}", '{"format": 2, "experiment": 5}'])
def test_a_damaged_run_does_not_hide_the_others(damage: str, headwise: Headwise) -> None:
    for _ in range(2):
        headwise(*small(), "--quiet")
    Path("runs/fedavg-synthetic-s0/manifest.json").write_text(damage)
    first, second = json.loads(headwise("list", "runs", "--json").out)["runs"]
    assert (first["run"], second["run"]) == ("runs/fedavg-synthetic-s0", "runs/fedavg-synthetic-s0-2")
    assert first["ended"].startswith("can't be read: ")
    assert second["ended"] == "finished"


@pytest.mark.parametrize("name", list_names("method"))
def test_every_method_is_described(name: str, headwise: Headwise) -> None:
    said = headwise("describe", name)
    assert (said.code, said.err) == (0, "")
    entry = registry.read_card("method", name)
    assert entry.summary in said.out
    for word in (
        "family",
        "travels",
        "stays",
        "server needs",
        "linear network",
        "server keeps",
        "message down",
        "message up",
        "client keeps",
    ):
        assert re.search(rf"^{word} +\S", said.out, re.MULTILINE)
    assert ">>>" not in said.out  # examples of a record's docstring
    for option, text in entry.fields.items():
        assert re.search(rf"^  {option} = ", said.out, re.MULTILINE)
        assert text in said.out


def test_json_is_one_object_with_the_result(headwise: Headwise, here: Path) -> None:
    said = headwise(*small(split="8:1:1", out="run"), "--json", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("\n") == 1
    found = json.loads(said.out)
    assert (found["run"], found["method"], found["data"], found["rounds"]) == ("run", "fedavg", "synthetic", 2)
    assert 0 < found["floor"] < 1
    assert found["bytes_up"] == found["bytes_down"] == 2 * 3 * 4 * (5 * 4 + 4 + 4 * 3 + 3)
    assert found["seconds"] > 0
    for moment in ("pre", "post", "stale"):
        figures = found["accuracy"][moment]
        assert {"last", "best", "best_round", "client_mean", "client_std", "worst_decile", "selected"} <= figures.keys()
        assert figures["last"] <= figures["best"]
    last = hw.Run(here / "run").rounds[-1]
    assert found["accuracy"]["pre"]["last"] == last["pre"]["accuracy"]
    assert found["ended"] == "finished"


def test_a_person_is_told_the_same(headwise: Headwise) -> None:
    said = headwise(*small(out="run"))
    assert said.out.startswith("fedavg on synthetic, 2 rounds, ")
    for word in ("pre", "post", "stale", "floor", "data", "sent", "in"):
        assert re.search(rf"^  {word} +\S", said.out, re.MULTILINE)
    assert said.out.rstrip().endswith("run")
    lines = said.err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"fedavg: round {t}/2" for t in range(3)]
    assert all(re.search(r"pre 0\.\d{4}, (post 0\.\d{4}, )?stale 0\.\d{4}, sent ", line) for line in lines)
    assert ["post" in line for line in lines] == [False, True, True], "before round 1, nobody has trained"


def test_quiet_is_quiet(headwise: Headwise) -> None:
    assert headwise(*small(out="run"), "--quiet").err == ""
    assert headwise("resume", "run", "--quiet").err == ""


def test_resume_says_that_a_run_has_finished(headwise: Headwise) -> None:
    ended = headwise(*small(out="run"), "--quiet")
    said = headwise("resume", "run")
    assert said.err == "run has finished: no round was left to run. This is its result.\n"
    assert said.out == ended.out


def test_a_federation_without_test_samples_has_no_floor_to_show(headwise: Headwise) -> None:
    lonely = small(clients="120", rounds="1", out="run")
    said = headwise(*lonely, "--quiet")
    assert said.code == 0
    assert "floor" not in said.out
    table = headwise(*small("compare", "fedavg", "standalone", clients="120", rounds="1"), "--quiet")
    assert table.code == 0
    assert "Nothing was measured" in table.out


def test_a_run_that_ended_early_says_how_to_go_on(headwise: Headwise) -> None:
    said = headwise(*small(out="run", set="stop.budget=1e-9"), "--quiet")
    assert said.code == 0
    assert said.out.endswith("run; it ended early (budget), continue with: headwise resume run\n")
    again = headwise("resume", "run", "--json")
    assert json.loads(again.out)["ended"] == "finished"
    assert "has finished" not in again.err


def test_set_beats_flags_and_flags_beat_the_file(headwise: Headwise, here: Path) -> None:
    (here / "base.toml").write_text(
        "rounds = 5\nclients = 2\ndata = 'synthetic:60:2:3:sites=2'\nmodel = 'mlp:4'\npartition = 'iid'\nseed = 1\n"
        "[method]\nname = 'fedprox'\nmu = 0.5\n[train]\nlr = 0.1\nbatch = 3\nepochs = 2\n"
    )
    args = ["--rounds", "4", "--lr", "0.2", "--batch", "4", "--ratio", "0.5..1"]
    changes = ["--set", "rounds=1", "--set", "train.batch=5", "--set", "method.mu=0.25", "--set", "model.hidden=7"]
    assert headwise("run", "base.toml", *args, *changes, "--out", "run", "--quiet").code == 0
    found = hw.Run(here / "run").manifest["experiment"]
    assert (found["rounds"], found["clients"], found["seed"]) == (1, 2, 1)
    assert (found["method"]["name"], found["method"]["mu"]) == ("fedprox", 0.25)
    assert found["model"] == [{"name": "mlp", "hidden": 7, "layers": 1}]
    assert (found["train"]["lr"], found["train"]["batch"], found["train"]["epochs"]) == (0.2, 5, 2)
    assert (found["sampling"]["ratio_low"], found["sampling"]["ratio"]) == (0.5, 1.0)


def test_an_option_of_a_model_that_a_flag_names_can_be_set(headwise: Headwise, here: Path) -> None:
    assert headwise(*small(model="mlp", set="model.hidden=3", out="run"), "--quiet").code == 0
    assert hw.Run(here / "run").manifest["experiment"]["model"] == [{"name": "mlp", "hidden": 3, "layers": 1}]


def test_what_was_resolved_gives_the_same_run_again(headwise: Headwise, here: Path) -> None:
    headwise(*small(out="first"), "--quiet")
    tree = hw.Run(here / "first").manifest["experiment"]
    from headwise.settings.experiment import experiment_from

    again = hw.run(experiment_from(json.loads(json.dumps(tree))), here / "second")
    assert again.manifest["experiment"] == tree
    assert again.accuracy() == hw.Run(here / "first").accuracy()


def test_compare_gives_a_table_and_does_not_repeat_itself(headwise: Headwise, here: Path) -> None:
    args = [*small("compare", "fedavg", "standalone", out="table"), "--draws", "2", "--quiet"]
    said = headwise(*args, "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert [m["method"] for m in found["methods"]] == ["fedavg", "standalone"]
    assert found["draws"] == 2
    for line in found["methods"]:
        lasts = [run["accuracy"]["pre"]["last"] for run in line["runs"]]
        assert len(lasts) == 2
        assert line["pre"]["last"] == pytest.approx(sum(lasts) / 2)
        assert line["pre"]["std"] == pytest.approx(abs(lasts[0] - lasts[1]) / 2**0.5)
    assert {p.name for p in (here / "table").iterdir()} == {
        "fedavg-d0-s0", "fedavg-d1-s1", "standalone-d0-s0", "standalone-d1-s1", "comparison.json", "table.md",
        "table.tex", "report.html",
    }  # fmt: skip
    partitions = {hw.Run(p.parent).manifest["partition"]["hash"] for p in here.glob("table/*/manifest.json")}
    assert len(partitions) == 2, "all methods share the partition of a draw"
    before = snapshot(here)
    text = headwise(*args)
    assert snapshot(here) == before
    assert "fedavg" in text.out
    assert "majority floor" in text.out


def test_compare_takes_methods_with_options_and_a_base(headwise: Headwise, here: Path) -> None:
    (here / "base.toml").write_text("rounds = 1\nclients = 2\ndata = 'synthetic:60:2:3:sites=2'\n")
    methods = "fedprox:mu=0.5,fedprox:mu=0"
    said = headwise(
        "compare",
        "base.toml",
        "--methods",
        methods,
        "--partition",
        "iid",
        "--draws",
        "1",
        "--seeds",
        "2",
        "--json",
        "--quiet",
    )
    assert [m["method"] for m in json.loads(said.out)["methods"]] == methods.split(",")
    paths = sorted(here.glob("runs/*/*/manifest.json"))
    assert [hw.Run(p.parent).manifest["experiment"]["method"]["mu"] for p in paths] == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("moments", ['["global"]', '["post"]', '["pre"]'])
def test_compare_works_with_any_moment(moments: str, headwise: Headwise) -> None:
    args = small("compare", "fedavg", "fedper", "standalone", rounds="1", set=f"evaluate.moments={moments}")
    said = headwise(*args, "--quiet")
    assert said.code == 0
    alone = moments == '["global"]'  # only fedavg has a global model
    assert ("Clients train with fedavg" if alone else "gives its clients the best models") in said.out


def test_python_m_headwise_is_the_same_program(tmp_path: Path) -> None:
    done = subprocess.run([PYTHON, "-m", "headwise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"headwise, version {hw.__version__}\n")


@pytest.mark.parametrize("command", ["--help", "--version", "list methods", "list data --json", "list runs", "run -h"])
def test_quick_commands_import_nothing_heavy(command: str, tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from headwise.cli import main; heavy = ('torch', 'numpy', 'sklearn', 'rich'); "
        "atexit.register(lambda: print('HEAVY', *[m for m in heavy if m in sys.modules])); main(sys.argv[1:])"
    )
    run = [PYTHON, "-c", code, *command.split()]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY"


def test_in_a_terminal_there_is_a_live_display(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    args = [PYTHON, "-m", "headwise", *small(out="run[/bold]", rounds="3", method="fedper"), "--json"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # Linux's end of file: the other end is closed
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, shown.decode()
    assert json.loads(out)["rounds"] == 3
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "fedper" in text
    assert "round 3/3" in text
    assert "\x1b[" in shown.decode(), "it is drawn over and over"


def test_the_display_does_not_stumble_over_a_name_that_looks_like_markup() -> None:
    from rich.console import Console

    from headwise.cli.display import Watch

    console = Console(width=100)
    with console.capture() as found:
        console.print(Watch("run[/bold] [red]").picture())
    assert "run[/bold] [red]" in found.get()


@pytest.mark.parametrize(("split", "shown"), [("6:2:2", "pre (validation) 0."), ("8/2", "pre 0.")])
def test_who_watches_sees_validation_scores_where_there_are_any(split: str, shown: str, headwise: Headwise) -> None:
    assert f": round 2/2, {shown}" in headwise(*small(split=split), "--out", "watched").err


def test_failures_are_counted_by_reason_where_results_are_shown(headwise: Headwise) -> None:
    settings = ("--faults", "drop=0.4,nan=0.3", "--set", "faults.min_replies=0", "--out", "failing")
    shown = headwise(*small(), *settings)
    failed = hw.Run(Path("failing")).failed
    assert failed.keys() == {"no answer", "not finite"}
    assert f"  failed {', '.join(f'{count} x {reason}' for reason, count in failed.items())}\n" in shown.out
    assert f"failed {sum(failed.values())}" in shown.err
    assert json.loads(headwise("resume", "failing", "--json").out)["failed"] == failed
    headwise("report", "failing")
    counts = ", ".join(f"{n} x {reason}" for reason, n in sorted(failed.items(), key=lambda item: -item[1]))
    assert f"Clients of fedavg failed {sum(failed.values())} times: {counts}." in Path("report.html").read_text()
