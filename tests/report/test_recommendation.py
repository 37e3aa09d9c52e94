"""What `choose` answers is no more than what its runs show, and its sentences agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_runs import make_run

from headwise.log.metrics import ACCURACY
from headwise.report.recommendation import Recommendation, list_level
from headwise.report.results import Line, Setting
from headwise.report.words import describe_difference
from headwise.runs.query import Run, title_of


def recommend(
    folder: Path,
    scores: dict[str, list[float]],
    left_out: dict[str, int] | None = None,
    tested: dict[str, list[float]] | None = None,
) -> Recommendation:
    """From validation scores of each line on some draws; those on test samples are the same where none are given."""
    lines: list[Line] = []
    for name, validation in scores.items():
        runs: list[Run] = []
        for draw, (score, end) in enumerate(zip(validation, (tested or {}).get(name, validation), strict=True)):
            method = name.removeprefix("tuned ")
            path = make_run(folder / f"{name}-{draw}", method, draw, end=end, validation=score, data_seed=draw)
            runs.append(Run(path))
        lines.append(Line(name, tuple(runs)))
    first = lines[0].runs[0]
    setting = Setting(title_of(first.manifest["experiment"], first.metric), tuple(lines))
    return Recommendation(setting, {}, [], (["method"], []), left_out or {})


CLEAR = {"standalone": [0.60, 0.61, 0.62], "fedavg": [0.50, 0.51, 0.52], "knn-per": [0.90, 0.91, 0.925]}


def test_words_are_about_those_that_ran_on_all_draws(tmp_path: Path) -> None:
    """They called every method clearly behind, though most ran on one draw only."""
    answer = recommend(tmp_path, CLEAR, left_out={"fedper": 1, "fedrep": 1, "apfl": 2})
    text = " ".join(answer.words())
    assert "of the 3 that ran on all 3 draws, every other is clearly behind knn-per." in text
    assert "very other method" not in text
    assert "knn-per is the best of these 3, or at most" in text
    assert "2 others were left out after one draw: fedper, fedrep." in text
    assert "1 other was left out after 2 draws: apfl." in text


def test_words_are_about_all_where_all_ran_on_all_draws(tmp_path: Path) -> None:
    text = " ".join(recommend(tmp_path, CLEAR).words())
    assert "every other method is clearly behind knn-per." in text
    assert "left out" not in text


def test_local_training_is_taken_where_it_is_level_with_the_best(tmp_path: Path) -> None:
    scores = {"standalone": [0.92, 0.93, 0.94], "fedavg": [0.5, 0.6, 0.7], "pfedfda": [0.98, 0.90, 0.94]}
    answer = recommend(tmp_path, scores)
    assert answer.near == answer.level == ["pfedfda", "standalone"]
    assert answer.pick == "standalone"
    words = answer.words()
    assert words[0].startswith("Nothing shows that learning together pays here: local training gives")
    assert "; on validation samples, pfedfda is ahead by 1.0 points (" in words[0]
    assert words[0].endswith("which may be chance. A larger --budget may show that it does.")
    assert "Can't be told apart on validation samples: standalone, pfedfda. Take standalone: it sends nothing." in words


def test_a_likely_gain_is_taken_and_called_likely(tmp_path: Path) -> None:
    """Local training was taken wherever no gain was proven, which gave likely gains away."""
    scores = {"standalone": [0.92, 0.93, 0.94], "fedavg": [0.5, 0.6, 0.7], "pfedfda": [0.97, 0.94, 0.95]}
    answer = recommend(tmp_path, scores)
    assert answer.near == ["pfedfda", "standalone"], "no gain is proven"
    assert answer.level == ["pfedfda"], "local training is more than a standard error behind"
    assert answer.pick == "pfedfda"
    words = answer.words()
    assert words[0].startswith("Learning together probably pays here: use pfedfda.")
    assert words[0].endswith("which may be chance. A larger --budget would tell more.")
    assert "Can't be told apart on validation samples: pfedfda, standalone. Take pfedfda" in " ".join(words)


def test_test_samples_may_disagree_with_a_likely_gain(tmp_path: Path) -> None:
    scores = {"standalone": [0.92, 0.93, 0.94], "fedavg": [0.5, 0.6, 0.7], "pfedfda": [0.97, 0.94, 0.95]}
    answer = recommend(tmp_path, scores, tested={"pfedfda": [0.93, 0.91, 0.92]})
    assert answer.pick == "pfedfda"
    said = "Validation samples suggest that learning together pays here, test samples do not: use pfedfda, but don't"
    assert answer.words()[0].startswith(said)


def test_a_gain_that_validation_samples_prove_and_test_samples_only_suggest_is_likely(tmp_path: Path) -> None:
    answer = recommend(tmp_path, CLEAR, tested={"knn-per": [0.58, 0.75, 0.64]})
    assert "standalone" not in answer.near
    assert answer.words()[0].startswith("Learning together probably pays here: use knn-per.")


def test_the_better_line_of_local_training_is_local_training(tmp_path: Path) -> None:
    """The faster of two level lines was taken, and the answer called it better than local training."""
    scores = {"standalone": [0.92, 0.93, 0.94], "fedavg": [0.5, 0.6, 0.7], "tuned standalone": [0.95, 0.92, 0.95]}
    answer = recommend(tmp_path, scores)
    assert list_level(answer.validation, answer.equal, None) == ["tuned standalone", "standalone"]
    assert answer.pick == answer.local == "tuned standalone"
    assert answer.words()[0].startswith("Of 1 other method that ran, none pays here: local training gives")


def test_one_global_model_is_not_compared_with_itself(tmp_path: Path) -> None:
    scores = {"standalone": [0.5, 0.6, 0.7], "fedavg": [0.92, 0.93, 0.94], "tuned fedavg": [0.95, 0.92, 0.95]}
    answer = recommend(tmp_path, scores)
    assert answer.pick == answer.one_model == "tuned fedavg"
    text = " ".join(answer.words())
    assert "one model for everybody is enough" in text
    assert "One global model for everybody" not in text


def test_a_method_behind_local_training_is_never_taken(tmp_path: Path) -> None:
    """A method with widely spread scores is level with the best even where local training is clearly behind it."""
    scores = {"standalone": [0.90, 0.91, 0.92], "fedavg": [0.80, 0.99, 0.905], "knn-per": [0.94, 0.95, 0.96]}
    answer = recommend(tmp_path, scores)
    assert answer.validation.ranking == ["knn-per", "standalone", "fedavg"]
    assert list_level(answer.validation, answer.equal, None) == ["knn-per", "fedavg"]
    assert answer.level == ["knn-per"]


def test_a_single_client_and_draw_prove_nothing(tmp_path: Path) -> None:
    scores = {"standalone": [0.6], "knn-per": [0.9]}
    paths = [make_run(tmp_path / m, m, end=v[0], validation=v[0], clients=1) for m, v in scores.items()]
    lines = tuple(Line(path.name, (Run(path),)) for path in paths)
    answer = Recommendation(Setting("one", lines), {}, [], (["method"], []))
    assert answer.words()[0].startswith("Of the methods that ran, use knn-per.")
    assert "nothing shows how certain this is" in " ".join(answer.words())


def test_many_rivals_do_not_make_local_training_look_good(tmp_path: Path) -> None:
    """Holm's rule over all rivals would keep it, though its own interval excludes zero."""
    rivals = {f"fed{k}": [0.99 - k / 500, 0.85, 0.95 + k / 500] for k in range(8)}
    answer = recommend(tmp_path, {"standalone": [0.62, 0.68, 0.55], "best": [0.95, 0.96, 0.97], **rivals})
    assert "standalone" in answer.validation.not_worse_than_best(answer.equal)
    assert "standalone" not in answer.near
    assert answer.words()[0].startswith("Learning together pays here")


def test_each_figure_is_of_validation_or_of_test_samples(tmp_path: Path) -> None:
    """One sentence called a method best for the worst tenth, with test scores that said the opposite."""
    scores = {"standalone": [0.60, 0.61, 0.62], "fedavg": [0.5, 0.51, 0.52], "knn-per": [0.90, 0.91, 0.925]}
    answer = recommend(tmp_path, scores)
    object.__setattr__(answer, "for_worst_tenth", "standalone")
    text = " ".join(answer.words())
    assert (
        "On validation samples, standalone is best for the worst tenth of the clients: 61.0 %, knn-per 91.2 %;" in text
    )
    assert "on test samples, standalone 61.0 %, knn-per 91.2 %." in text
    assert "On test samples, worse off with knn-per than with local training: 0% of the clients" in text
    head, _ = answer.table()
    assert [h for h in head if "worst tenth" in h or "worse than" in h] == [
        "validation, worst tenth",
        "validation, worse than local training",
    ]


def test_that_learning_together_does_not_pay_needs_several_rivals(tmp_path: Path) -> None:
    """It was said after one draw of FedAvg."""
    few = {"standalone": [0.90, 0.91, 0.92], "fedavg": [0.5, 0.51, 0.52]}
    many = {**few, **{f"fed{k}": [0.6, 0.61, 0.62] for k in range(19)}}
    assert recommend(tmp_path / "few", few).words()[0].startswith("Of 1 other method that ran, none pays here: local")
    assert recommend(tmp_path / "many", many).words()[0].startswith("Learning together does not pay here: local")


def test_a_yardstick_that_is_behind_is_not_listed_with_the_best(tmp_path: Path) -> None:
    rivals = {f"fed{k}": [0.99 - k / 500, 0.85, 0.95 + k / 500] for k in range(8)}
    scores = {"standalone": [0.62, 0.68, 0.55], "fedavg": [0.62, 0.68, 0.55], "best": [0.95, 0.96, 0.97], **rivals}
    answer = recommend(tmp_path, scores)
    assert "fedavg" in answer.validation.not_worse_than_best(answer.equal)
    assert not {"standalone", "fedavg"} & {*answer.near}


def test_the_floor_stands_beside_the_scores(tmp_path: Path) -> None:
    """Coin flips were recommended without a word about what guessing scores."""
    answer = recommend(tmp_path / "clear", CLEAR)
    floor = answer.to_plain()["floor"]
    guess = "Always guessing a client's most frequent class gives"
    assert f"{guess} {100 * floor:.1f} %." in answer.words()
    poor = {name: [floor, floor - 0.01, floor + 0.01] for name in CLEAR}
    said = [sentence for sentence in recommend(tmp_path / "poor", poor).words() if sentence.startswith(guess)]
    assert said[0].endswith("nothing shows that standalone has learned more than that.")


def test_a_run_that_was_cut_short_says_so_first(tmp_path: Path) -> None:
    answer = replace(recommend(tmp_path, CLEAR), rounds=(5, 50))
    assert answer.words()[0].startswith("After 5 of 50 rounds: Learning together pays here")


def test_what_is_behind_is_behind_by_a_positive_number(tmp_path: Path) -> None:
    """An interval of the lead followed the words: behind by 25.1 points (-34.4 to -15.9)."""
    cells = recommend(tmp_path, CLEAR).validation
    text = describe_difference(cells, ACCURACY, "fedavg", "knn-per")
    lead, low, high = cells.difference("knn-per", "fedavg")
    assert text == f"behind by {100 * lead:.1f} points (+{100 * low:.1f} to +{100 * high:.1f} over 3 draws)"


def test_one_draw_shows_only_that_learning_together_probably_pays(tmp_path: Path) -> None:
    answer = recommend(tmp_path, {name: validation[:1] for name, validation in CLEAR.items()})
    assert answer.test.difference("knn-per", "standalone").low > 0
    assert answer.words()[0].startswith("Learning together probably pays here: use knn-per.")
