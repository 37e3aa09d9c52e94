"""What results say over federations, and what a change of code did to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headwise.errors import RunError
from headwise.league.cells import Result, read_csv, to_csv
from headwise.league.play import League, render
from headwise.league.standings import (
    compare_leagues,
    describe_changes,
    federation_table,
    split_by_federation,
    standings_of,
    tabulate_changes,
)

MEANS = {"standalone": 0.6, "fedavg-ft": 0.7, "fedah": 0.8, "fd": 0.6}


def make_results(federations: int = 3, draws: int = 4, shift: float = 0.0, noise: float = 0.01) -> list[Result]:
    """Scores around these means; every federation has another level."""
    rng = np.random.default_rng(7)
    results: list[Result] = []
    for f in range(federations):
        for d in range(draws):
            for name, mean in MEANS.items():
                scores = mean - 0.1 * f + (shift if name == "fedah" else 0) + noise * rng.standard_normal(5)
                results.append(
                    Result(
                        f"fed{f}", "made up", name, f"family of {name}", "default", d, "accuracy", "up",
                        float(scores.mean()), float(scores.min()), new_clients={"0 epochs": 0.1, "5 epochs": 0.5},
                        kb_down=1.0, kb_up=2.0, cpu_seconds=0.5, clients=5, scores=scores.tolist(),
                    )
                )  # fmt: skip
    return results


def test_ranks_wins_and_losses() -> None:
    table = standings_of(make_results()).table
    assert [s.name for s in table][:2] == ["fedah", "fedavg-ft"]
    best = table[0]
    assert best.mean_rank == 1
    assert best.regret == 0
    assert best.near_best == 3
    assert best.against == {"standalone": (3, 0, 0), "fedavg-ft": (3, 0, 0)}
    assert next(s for s in table if s.name == "standalone").against["fedavg-ft"] == (0, 0, 3)
    assert best.p_values["standalone"] == 0.25  # the smallest that three federations allow


def test_words_say_how_little_few_draws_and_federations_are() -> None:
    words = standings_of(make_results()).words()
    assert words[0] == "4 methods on 3 federations, 4 draws each."
    assert words[1].startswith("Fewer than 5 draws are few")
    assert "can separate no method from standalone" in words[3]
    enough = standings_of(make_results(federations=9, draws=5)).words()
    assert not any("few" in sentence for sentence in enough[:2])
    assert any(s.startswith("Different from standalone") and "fedah" in s for s in enough)


def test_nothing_is_said_of_a_yardstick_that_was_not_run() -> None:
    results = [r for r in make_results(1, 1) if r.method in ("fedah", "fd")]
    standings = standings_of(results)
    assert standings.rivals == ()
    assert not any(rival in text for text in standings.words() for rival in ("standalone", "fedavg-ft"))
    assert standings.overview()[0] == ["method", "family", "mean rank", "behind the best", "near the best"]
    assert all(len(row) == 5 for row in standings.overview()[1])
    assert standings.tabulate_families() == ([], [])
    head, rows = federation_table(standings.groups[0])
    assert not {"ahead of local training", "worse off"} & {*head}
    assert all(len(row) == len(head) for row in rows)
    page = render(League(tuple(results)))
    assert "; 1 draw;" in page.replace(".</p>", ";")
    assert "Which kind of federation favours" not in page
    assert '"rivals": []' in page or '"rivals":[]' in page


def test_one_comparison_is_in_the_singular() -> None:
    words = standings_of([r for r in make_results(1, 1) if r.method in ("fedah", "standalone")]).words()
    assert any("With 1 federation and 1 comparison, Wilcoxon's" in sentence for sentence in words)
    assert not any("fedavg-ft" in sentence for sentence in words)


def test_a_method_that_was_not_run_on_all_draws_is_left_out() -> None:
    results = [r for r in make_results() if r.method != "fd" or r.draw < 2]
    groups = split_by_federation(results)
    assert {len(group.draws) for group in groups} == {4}
    assert all(group.unfinished == ["fd"] and "fd" not in group.scored for group in groups)
    assert "Not run on all draws yet, and left out there: fd." in standings_of(results).words()


def test_a_federation_with_few_methods_is_left_out() -> None:
    results = [r for r in make_results() if r.federation != "fed2" or r.method == "fedah"]
    standings = standings_of(results)
    assert [group.name for group in standings.groups] == ["fed0", "fed1"]
    assert "Left out, since few methods were run there so far: fed2." in standings.words()


def test_a_draw_that_few_methods_have_is_not_compared() -> None:
    results = [r for r in make_results() if r.method == "standalone" or r.draw < 2]
    groups = split_by_federation(results)
    assert {len(group.draws) for group in groups} == {2}
    assert not groups[0].unfinished


def test_what_failed_shares_the_last_rank() -> None:
    failed = Result("fed0", "made up", "fd", "family", "default", 0, error="it diverged.")
    results = [r for r in make_results() if (r.method, r.federation) != ("fd", "fed0")] + [failed]
    standings = standings_of(results)
    assert standings.ranks["fd"][0] == 4
    assert standings.groups[0].failed == {"fd": "it diverged."} or standings.groups[-1].failed == {"fd": "it diverged."}


def test_what_failed_on_one_of_the_draws_shares_the_last_rank() -> None:
    failed = Result("fed0", "made up", "fedah", "family of fedah", "default", 1, error="it diverged.")
    results = [r for r in make_results() if (r.method, r.federation, r.draw) != ("fedah", "fed0", 1)] + [failed]
    standings = standings_of(results)
    assert standings.ranks["fedah"] == [4, 1, 1]
    assert standings.groups[0].failed == {"fedah": "it diverged."}
    assert not standings.groups[0].unfinished


def test_a_federations_table_has_intervals_and_costs() -> None:
    head, rows = federation_table(split_by_federation(make_results())[0])
    first = dict(zip(head, rows[0], strict=True))
    assert first["method"] == "fedah *"
    assert first["new, 5 epochs"] == "50.0 %"
    assert first["worse off"] == "0%"
    assert first["KB up"] == "2.00"
    assert " to " in first["95 % interval"]


def test_families_by_federation() -> None:
    head, rows = standings_of(make_results(noise=0)).tabulate_families()
    assert head == ["family", "fed0", "fed1", "fed2"]
    assert ["family of fedah (1)", "+20.0", "+20.0", "+20.0"] in rows


def test_a_change_is_shown_with_its_interval() -> None:
    old = make_results()
    assert all(c.identical for c in compare_leagues(old, old))
    changes = compare_leagues(old, make_results(shift=-0.03))
    assert [c.name for c in changes[:3]] == ["fedah"] * 3
    assert all(c.difference.excludes_zero for c in changes[:3])
    words = describe_changes(changes)
    assert "9 with the same scores, 3 that changed by more than chance" in words[0]
    assert [row[1] for row in tabulate_changes(changes)[1]] == ["fedah"] * 3


def test_the_csv_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "league.csv"
    path.write_text(to_csv(make_results()))
    results = read_csv(path)
    assert len(results) == len(make_results())
    assert all(c.identical for c in compare_leagues(make_results(), results))
    blank = {"scores": [], "mean_client": 0, "worst_tenth": 0}
    same = next(r for r in make_results() if r.method == "fd")
    assert {**results[0].to_plain(), **blank} == {**same.to_plain(), **blank}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("federation,", "place,", 1), "its columns must be"),
        (lambda text: text + "a,b\n", "its columns must be"),
        (lambda text: text.replace("true", "3").replace("false", "3"), "line 2 has a wrong same_clients"),
        (lambda text: text.replace('"[', '"[["x"],'), "."),
        (lambda text: "\x00" + text, "."),
        (lambda text: "", "its columns must be"),
    ],
)
def test_a_damaged_csv_is_one_sentence(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "league.csv"
    path.write_text(change(to_csv(make_results(1, 1))))  # pyright: ignore[reportCallIssue]
    with pytest.raises(RunError, match=message):
        read_csv(path)


def test_the_page_holds_what_its_filters_need_and_no_markup_of_names() -> None:
    results = make_results()
    results = [
        *results,
        *(
            Result(r.federation, "<b>", "<script>", "own", "default", r.draw, "accuracy", "up", 0.5, 0.5, clients=5,
                   scores=[0.5] * 5)
            for r in results if r.method == "fd"
        ),
    ]  # fmt: skip
    html = render(League(tuple(results), left_out={"text": "no files."}))
    assert "<script>\ndocument" in html
    assert html.count("<script>") == 1
    assert "<li>Not run: text. no files.</li>" in html
    data = json.loads(html.split("const data = ")[1].split(";\n")[0])
    assert data["federations"] == ["fed0", "fed1", "fed2"]
    assert {len(m["ranks"]) for m in data["methods"]} == {3}
