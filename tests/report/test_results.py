"""Runs become lines and settings, and the sentences about them are true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import make_run

from headwise.cli.commands.run import show
from headwise.errors import RunError
from headwise.report.data import client_scores
from headwise.report.page import render, tabulate_partition
from headwise.report.results import collect
from headwise.report.tables import tabulate_results
from headwise.report.words import describe_clients, describe_failures, describe_results
from headwise.runs.query import Run


def test_runs_that_differ_in_their_seed_are_one_line(three: Path) -> None:
    [setting] = collect([three])
    assert [(line.name, len(line.runs)) for line in setting.lines] == [("fedavg", 2), ("fedrep", 2), ("standalone", 2)]
    assert [line.name for line in setting.ranking] == ["fedrep", "standalone", "fedavg"]
    best = setting.ranking[0]
    assert best.score == pytest.approx(0.9)
    assert best.spread() == pytest.approx(0.02 / 2**0.5)


def test_a_run_named_twice_counts_once(three: Path) -> None:
    [setting] = collect([three, three / "fedrep-0"])
    assert [len(line.runs) for line in setting.lines] == [2, 2, 2]


def test_of_two_runs_with_one_seed_the_later_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "fedavg", end=0.5)
    make_run(tmp_path / "fedavg-2", end=0.7)
    [setting] = collect([tmp_path])
    [line] = setting.lines
    assert [run.path.name for run in line.runs] == ["fedavg-2"]


def test_lines_are_named_by_what_sets_them_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedprox", options={"mu": 0.1, "other": 1})
    make_run(tmp_path / "b", "fedprox", options={"mu": 0.5, "other": 1})
    make_run(tmp_path / "c", "fedavg", train={"lr": 0.1})
    [setting] = collect([tmp_path])
    assert [line.name for line in setting.lines] == ["fedavg", "fedprox · mu=0.1", "fedprox · mu=0.5"]


def test_runs_on_other_data_are_a_setting_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data={"name": "mnist"})
    assert [s.title for s in collect([tmp_path])] == [
        "digits, dirichlet:0.1, 5 clients",
        "mnist, dirichlet:0.1, 5 clients",
    ]


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such folder"):
        collect([tmp_path / "none"])
    with pytest.raises(RunError, match="holds no runs"):
        collect([tmp_path])


@pytest.mark.parametrize("line", ['{"round": 1}', "[]", '{"round": 1, "pre": {"accuracy": 1}}', "no json"])
def test_damage_is_one_sentence_that_names_the_run(line: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "hurt")
    (run / "rounds.jsonl").write_text(f"{line}\n")
    with pytest.raises(RunError, match=r"hurt.* is damaged"):
        _ = [line.summaries for line in collect([tmp_path])[0].lines]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("partition.json", '{"train": 5}'),
        ("partition.json", '{"train": [["<b>"]], "test": [[1]]}'),
        ("clients.jsonl", '{"client": 1}\n'),
        ("clients.jsonl", "no json\n"),
        ("diagnostics.jsonl", '{"round": 1}\n'),
        ("manifest.json", '{"format": 1}'),
    ],
)
def test_damage_anywhere_is_one_sentence(name: str, text: str, tmp_path: Path) -> None:
    (make_run(tmp_path / "hurt") / name).write_text(text)
    with pytest.raises(RunError, match=r"hurt.* is damaged"):
        render(collect([tmp_path]))


def test_a_manifest_without_its_clients_is_damaged(tmp_path: Path) -> None:
    path = make_run(tmp_path / "hurt") / "manifest.json"
    path.write_text(path.read_text().replace('"clients"', '"klients"'))
    with pytest.raises(RunError, match=r"hurt/manifest.json is damaged: its experiment.clients is missing"):
        collect([tmp_path])


def test_last_scores_are_the_last(tmp_path: Path) -> None:
    make_run(tmp_path / "a", end=0.7, by_client={0: 0.1, 4: 1.0})
    make_run(tmp_path / "b", end=0.7, seed=1, by_client={0: 0.3})
    [setting] = collect([tmp_path])
    scores = client_scores(setting.lines[0], setting)
    assert scores["pre"] == pytest.approx({0: 0.2, 1: 0.7, 2: 0.7, 3: 0.7, 4: 0.85})
    assert scores["stale"] == scores["pre"]


def test_floor_is_that_of_the_most_frequent_training_class(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", clients=2)
    counts = {"train": [[3, 9], [5, 1]], "val": [[0, 0], [0, 0]], "test": [[6, 2], [0, 0]]}
    (run / "partition.json").write_text(json.dumps(counts))
    assert collect([tmp_path])[0].run.floors == [0.25, None]


def test_words_count_failures_by_reason_over_all_seeds(tmp_path: Path) -> None:
    for seed, failed in ((0, {"no answer": [1, 2], "not finite": [0]}), (1, {"no answer": [4]})):
        run = make_run(tmp_path / str(seed), "fedrep", seed)
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        rows[0]["failed"] = failed
        (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_run(tmp_path / "well", "fedavg")
    assert describe_failures(collect([tmp_path])[0]) == [
        "Clients of fedrep failed 4 times: 3 x no answer, 1 x not finite."
    ]


def test_words_say_who_won_and_by_how_much(three: Path) -> None:
    sentences = describe_results(collect([three])[0])
    assert sentences == [
        "fedrep gives its clients the best models: right after a download (pre), they get 90.0 % of their test "
        "samples right.",
        "Local training gives 80.0 % (pre): fedrep is ahead by 10.0 points (+10.0 to +10.0 over 2 seeds and the "
        "clients of one draw; another draw may differ).",
        "Clients would be better off with local training than with fedavg (60.0 %, pre).",
    ]


def test_words_rank_all_methods_by_one_moment_and_say_who_leads_at_the_other(tmp_path: Path) -> None:
    """Not each method by its better one: that would be a choice by test samples."""
    make_run(tmp_path / "a", "fedrep", end=0.8)
    make_run(tmp_path / "b", "fedah", end=0.7, shift={"stale": 0.2})
    make_run(tmp_path / "c", "fedavg", end=0.6, shift={"stale": 0.35})
    [setting] = collect([tmp_path])
    assert [(line.name, line.moment) for line in setting.ranking] == [
        ("fedrep", "pre"),
        ("fedah", "pre"),
        ("fedavg", "pre"),
    ]
    sentences = describe_results(setting)
    assert sentences[0].startswith("fedrep gives its clients the best models: right after a download (pre)")
    assert sentences[-1] == (
        "With their own last models (stale), fedavg is best with 95.0 %: headwise export --moment post writes them."
    )
    for path in tmp_path.glob("*/rounds.jsonl"):
        path.write_text(path.read_text().replace('"pre"', '"later"'))
    [setting] = collect([tmp_path])
    sentences = describe_results(setting)
    assert sentences[0].startswith("fedavg gives its clients the best models: with their own last models (stale)")
    assert "headwise export --moment post" in sentences[-1]


def test_validation_samples_decide_and_test_samples_report(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedrep", end=0.9, validation=0.7)
    make_run(tmp_path / "b", "fedah", end=0.8, validation=0.75)
    [setting] = collect([tmp_path])
    assert describe_results(setting)[:2] == [
        "fedah gives its clients the best models, by validation samples: right after a download (pre), they get "
        "80.0 % of their test samples right.",
        "On validation samples, which decide, it has 75.0 % (pre); on test samples, which must not decide, fedrep "
        "leads with 90.0 % (pre).",
    ]
    head, rows = tabulate_results(setting.lines, None)
    assert [row[head.index("validation (pre)")] for row in rows] == ["75.0 %", "70.0 %"]
    make_run(tmp_path / "c", "fedavg", end=0.8)
    [setting] = collect([tmp_path])
    assert [row[3] for row in tabulate_results(setting.lines, None)[1]] == ["75.0 %", "", "70.0 %"]


def test_who_is_near_is_told_by_the_samples_that_decide(tmp_path: Path) -> None:
    for draw in range(5):
        for method, end, judged in (("fedrep", 0.9, 0.7), ("fedah", 0.8, 0.75), ("fedper", 0.6, 0.77 - draw % 2 / 16)):
            more = {"end": end + draw / 100, "validation": judged, "data_seed": draw}
            make_run(tmp_path / f"{method}{draw}", method, draw, **more)
    text = " ".join(describe_results(collect([tmp_path])[0]))
    assert "Next is fedper with 62.0 % (pre) on test samples: fedah is ahead by 20.0 points" in text
    assert "Can't be told apart from fedah on validation samples: fedper." in text


def test_a_run_says_which_round_validation_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(Run(make_run(tmp_path / "a", end=0.6, validation=0.7)), as_json=False)
    assert ", test accuracy 0.1000 in round 1, which was chosen on validation" in capsys.readouterr().out


def test_validation_samples_are_counted_where_there_are_any() -> None:
    counts = {"train": [[3, 1]], "val": [[2, 0]], "test": [[1, 1]]}
    assert tabulate_partition(counts, ["no", "yes"]) == (
        ["client", "train", "val", "test", "no", "yes"],
        [["0", "4", "2", "2", "3", "1"]],
    )
    assert tabulate_partition({**counts, "val": [[0, 0]]}, ["no", "yes"])[0][:3] == ["client", "train", "test"]


def test_a_difference_that_prints_as_zero_is_neither_gain_nor_loss(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "standalone", end=0.5)
    make_run(tmp_path / "b", "fedrep", end=0.8, by_client={0: 0.5 + 1e-9, 1: 0.5 - 1e-9, 2: 0.4})
    assert (
        "2 of 5 clients are better off with fedrep and 1 is worse off (pre)"
        in describe_clients(collect([tmp_path])[0])[0]
    )


def test_words_doubt_a_lead_that_another_draw_may_reverse(tmp_path: Path) -> None:
    for draw, (one, other) in enumerate(((0.80, 0.70), (0.90, 0.92), (0.85, 0.84))):
        make_run(tmp_path / f"a{draw}", "fedrep", draw, end=one, data_seed=draw)
        make_run(tmp_path / f"b{draw}", "fedper", draw, end=other, data_seed=draw)
    [setting] = collect([tmp_path])
    assert (setting.draws, setting.repeats) == (3, "3 draws")
    text = " ".join(describe_results(setting))
    assert "fedrep is ahead by 3.0 points (-12.5 to +18.5 over 3 draws), which may be chance." in text
    assert "would tell" not in text, "one sentence says how many draws to run"
    assert "Can't be told apart from fedrep: fedper." in text
    assert "Intervals over 3 draws are wide and say little: run 5 or more" in text


def test_draws_that_divide_the_data_in_the_same_way_are_seeds(tmp_path: Path) -> None:
    """Files that say which samples are for testing: the words called three seeds three draws, and asked for more."""
    for draw, (one, other) in enumerate(((0.80, 0.70), (0.90, 0.92), (0.85, 0.84))):
        for method, end in (("fedrep", one), ("standalone", other)):
            path = make_run(tmp_path / f"{method}{draw}", method, draw, end=end, data_seed=draw) / "manifest.json"
            path.write_text(path.read_text().replace(f'"digits-{draw}"', '"as given"'))
    [setting] = collect([tmp_path])
    assert (setting.draws, setting.repeats) == (1, "3 seeds of one division of the data")
    cells = setting.cells(setting.lines)
    assert cells is not None
    assert (cells.draws, cells.seeds) == (1, 3)
    text = " ".join(describe_results(setting))
    assert "over 3 seeds of one division of the data)" in text
    assert text.count("Every draw divides the data in the same way") == 1
    assert "--draws" not in text and "draws" not in text


def test_words_do_not_send_clients_away_from_what_may_be_best(tmp_path: Path) -> None:
    """Local training can't be better than a method that can't be told apart from the best one."""
    for draw, (one, other, local) in enumerate(((0.80, 0.70, 0.75), (0.90, 0.92, 0.89), (0.85, 0.84, 0.85))):
        make_run(tmp_path / f"a{draw}", "fedrep", draw, end=one, data_seed=draw)
        make_run(tmp_path / f"b{draw}", "fedavg", draw, end=other, data_seed=draw)
        make_run(tmp_path / f"c{draw}", "standalone", draw, end=local, data_seed=draw)
    text = " ".join(describe_results(collect([tmp_path])[0]))
    assert "Can't be told apart from fedrep: standalone, fedavg." in text
    assert "Behind local training, which may be chance: fedavg (82.0 %, pre)." in text
    assert "better off" not in text


def test_words_are_sure_of_a_lead_on_all_draws(tmp_path: Path) -> None:
    for draw in range(5):
        make_run(tmp_path / f"a{draw}", "fedrep", draw, end=0.9 + draw / 100, data_seed=draw)
        make_run(tmp_path / f"b{draw}", "standalone", draw, end=0.8 + draw / 90, data_seed=draw)
    [setting] = collect([tmp_path])
    text = " ".join(describe_results(setting))
    assert "fedrep is ahead by 9.8 points (+9.6 to +10.0 over 5 draws)." in text
    assert "told apart" not in text and "wide" not in text
    assert describe_clients(setting)[0] == (
        "Against local training, 25 of 25 clients over 5 draws are better off with fedrep and 0 are worse off (pre)."
    )


def test_a_data_set_that_changed_is_another_setting(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    path = make_run(tmp_path / "b", "fedrep") / "manifest.json"
    content = json.loads(path.read_text())
    content["partition"]["hash"] = "f" * 64
    path.write_text(json.dumps(content))
    assert len(collect([tmp_path])) == 2


def test_words_of_one_seed_admit_chance(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedrep", end=0.9)
    make_run(tmp_path / "b", "standalone", end=0.95)
    sentences = " ".join(describe_results(collect([tmp_path])[0]))
    assert "No other method is ahead of local training here." in sentences
    make_run(tmp_path / "c", "fedper", end=0.96)
    assert "over 1 seed and the clients of one draw; another draw may differ" in " ".join(
        describe_results(collect([tmp_path])[0])
    )


def test_words_name_methods_below_the_floor(tmp_path: Path) -> None:
    make_run(tmp_path / "a", end=0.3)
    assert describe_results(collect([tmp_path])[0])[-1].startswith("Below the floor of 40.0 %")


def test_words_count_the_clients_that_gain_and_lose(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "standalone", end=0.5)
    make_run(tmp_path / "b", "fedrep", end=0.8, by_client={0: 0.5, 1: 0.4, 2: 0.9, 3: 0.0})
    gains, below = describe_clients(collect([tmp_path])[0])
    assert gains == (
        "Against local training, 2 of 5 clients are better off with fedrep and 2 are worse off (pre); client 2 "
        "gains most (+40.0 points); client 3 loses most (-50.0 points)."
    )
    assert "do worse than by guessing" in below


def test_words_when_nothing_was_measured(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "rounds.jsonl").write_text("")
    setting = collect([tmp_path])[0]
    assert describe_results(setting)[0].startswith("Nothing was measured")
    assert describe_clients(setting) == []


def test_words_say_what_is_promised(tmp_path: Path) -> None:
    """Once for all methods with the same guarantee; methods without one are named too."""
    promise = {"epsilon": 3.14159, "delta": 1e-5, "unit": "client", "source": "system"}
    for name, given in {
        "fedavg": promise,
        "fedper": promise,
        "fedgh": {**promise, "source": "seed"},
        "fedah": None,
    }.items():
        path = make_run(tmp_path / name, name) / "manifest.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | ({"privacy": given} if given else {})))
    text = " ".join(describe_results(collect([tmp_path])[0]))
    assert (
        "Differential privacy of fedavg, fedper: epsilon 3.14, delta 1e-05, of one client against the server." in text
    )
    assert "Differential privacy of fedgh: epsilon 3.14, delta 1e-05, of one client against the server; but" in text
    assert "Differential privacy of fedah: none." in text
    (tmp_path / "fedgh" / "manifest.json").write_text(json.dumps(content | {"privacy": {"epsilon": "<b>"}}))
    with pytest.raises(RunError, match="its privacy is"):
        describe_results(collect([tmp_path])[0])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds.jsonl", "5\n"),
        ("rounds.jsonl", "[" * 100_000 + "\n"),
        ("rounds.jsonl", '{"round": 1, "pre": ' + "[" * 600 + "]" * 600 + "}\n"),
        ("clients.jsonl", "null\n"),
        ("result.json", "[]"),
        ("manifest.json", '{"a":' * 100_000),
        ("partition.json", '{"train": [[1]], "test": []}'),
    ],
)
def test_a_damaged_run_among_others_is_left_out_with_a_sentence(name: str, text: str, tmp_path: Path) -> None:
    make_run(tmp_path / "good", "fedrep")
    (make_run(tmp_path / "hurt") / name).write_text(text)
    damaged: list[str] = []
    [setting] = collect([tmp_path], damaged)
    assert [line.name for line in setting.lines] == ["fedrep"]
    assert len(damaged) == 1
    assert f"hurt/{name} is damaged" in damaged[0]
    assert f"Left out: {tmp_path}/hurt/{name} is damaged" in render([setting], damaged=damaged)
    (tmp_path / "good" / "manifest.json").write_text("")
    with pytest.raises(RunError, match=r"none of these runs can be read: .*manifest.json is damaged"):
        collect([tmp_path], [])


def test_a_comparison_gives_the_complete_runs_that_it_lists(tmp_path: Path) -> None:
    for name, end in (("a", "finished"), ("b", "finished"), ("c", "interrupted")):
        (make_run(tmp_path / "out" / name, f"fed{name}") / "result.json").write_text(json.dumps({"ended": end}))
    make_run(tmp_path / "beside", "fedrep")
    rows = [{"method": f"row {name}", "runs": [{"run": f"x/{name}"}]} for name in ("a", "c", "gone")]
    (tmp_path / "out" / "comparison.json").write_text(json.dumps({"methods": rows}))
    left_out: list[str] = []
    [setting] = collect([tmp_path], None, left_out)
    assert [line.name for line in setting.lines] == ["fedrep", "row a"]
    out = tmp_path / "out"
    assert left_out == [
        f"{out} has 2 runs outside its last comparison: 1 of other methods, settings or draws, 1 unfinished.",
        f"{out} no longer has 1 run of its last comparison.",
    ]
    assert len(collect([tmp_path])[0].lines) == 4, "a live page shows all"
    assert [line.name for line in collect([out / "b"], None, [])[0].lines] == ["fedb"]
    (out / "comparison.json").write_text(json.dumps({"methods": rows[1:]}))
    with pytest.raises(RunError, match=r"holds no complete run of its last comparison: .*2 of other .*1 unfinished"):
        collect([out], None, [])
