"""A race on validation samples: answers that are known, within any budget, the same after it was killed."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.app import choose as choosing
from headwise.app.choose import Chosen, choose
from headwise.app.prepare import prepare
from headwise.disk.files import read_json
from headwise.engine.events import RoundEnded
from headwise.errors import ConfigError, RunError
from headwise.settings.experiment import read_toml
from headwise.settings.names import list_names
from headwise.settings.portfolio import read_portfolio

QUICK: dict[str, Any] = {"methods": ["fedper"], "draws": 2, "trials": 0, "rounds": 4, "workers": 1}


def samples_of(client: int, samples: int, *, own_rule: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Two noisy classes; with `own_rule`, what separates them is another feature at each client."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(samples, 8)).astype(np.float32)
    sides = x[:, client % 8] * (1 if client < 8 else -1) if own_rule else x[:, 0] + x[:, 1]
    return x, (sides + 0.4 * rng.normal(size=samples) > 0).astype(int)


def essence(chosen: Chosen) -> str:
    """All that was measured and decided, without folders and times."""
    plain = chosen.to_plain()
    for name in ("out", "experiment"):
        plain.pop(name)
    return json.dumps(plain)


def test_clients_that_are_alike_need_one_model(tmp_path: Path) -> None:
    clients = {f"c{k}": samples_of(k, 40) for k in range(20)}
    chosen = choose(clients, budget="1h", out=tmp_path / "alike", **QUICK | {"draws": 5, "rounds": 20, "lr": 0.2})
    assert chosen.method == "fedavg", chosen.words()
    assert chosen.words()[0].startswith("Learning together pays here: one model for everybody is enough.")


def test_clients_with_nothing_in_common_train_alone(tmp_path: Path) -> None:
    clients = {f"c{k}": samples_of(k, 200, own_rule=True) for k in range(16)}
    chosen = choose(clients, budget="1h", out=tmp_path / "apart", **QUICK | {"draws": 3, "rounds": 10, "lr": 0.2})
    assert chosen.method == "standalone", chosen.words()
    assert "pays here: local training gives" in chosen.words()[0]


def test_test_samples_decide_nothing(tmp_path: Path) -> None:
    """Wrong labels for all test samples change no choice, no validation score and no file to go on with."""
    chosen: list[Chosen] = []
    for name, flipped in (("right", False), ("wrong", True)):
        clients = {}
        for k in range(4):
            x, y = samples_of(k, 60)
            clients[f"c{k}"] = ((x[:40], y[:40]), (x[40:], 1 - y[40:] if flipped else y[40:]))
        more = QUICK | {"trials": 3, "draws": 3}
        chosen.append(choose(clients, budget="1h", out=tmp_path / name, **more))
    right, wrong = (c.to_plain() for c in chosen)
    for key in ("pick", "near", "for_worst_tenth", "for_traffic", "validation", "best_probabilities", "settings"):
        assert right[key] == wrong[key], key
    assert right["test"] != wrong["test"]
    assert chosen[0].answer.screened == chosen[1].answer.screened
    lines = [re.sub(r"path. = [^,}]*", "", (c.out / "best.toml").read_text()) for c in chosen]
    assert lines[0] == lines[1]


def test_a_race_that_is_killed_ends_the_same(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=3, engine={"workers": 1})
    more: dict[str, Any] = {"methods": ["fedper"], "draws": 2, "trials": 3, "budget": "1h"}
    whole = choose(base, out=tmp_path / "whole", **more)
    rounds = 0

    def kill(event: object) -> None:
        nonlocal rounds
        rounds += isinstance(event, RoundEnded)
        if isinstance(event, RoundEnded) and rounds % 4 == 3:
            raise KeyboardInterrupt

    for _ in range(60):
        try:
            killed = choose(base, out=tmp_path / "killed", watch=lambda title: nullcontext([kill]), **more)
            break
        except (KeyboardInterrupt, RunError):
            continue
    assert rounds > 20
    assert essence(killed) == essence(whole)


def test_the_answer_is_a_page_a_file_and_an_experiment(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=6, engine={"workers": 1})
    chosen = choose(base, methods=["fedper"], draws=2, trials=4, budget="1h", out=tmp_path / "all")
    again = hw.Experiment(**read_toml(chosen.out / "best.toml"))
    assert (again.method.name, again.rounds) == (chosen.method, 6)
    page = chosen.report.read_text()
    assert all(name in page for name in ("standalone", "fedavg-ft", "fedper", "headwise run --set"))
    assert json.loads((chosen.out / "choice.json").read_text())["words"] == chosen.words()
    assert len(chosen.answer.screened[1]) == 4


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_every_task_in_a_table(task: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "who": [f"p{k % 4}" for k in range(160)]})
    frame["target"] = x[:, 0] * 3 + 0.1 * rng.normal(size=160) if task == "regression" else (x[:, 0] > 0).astype(int)
    frame["other"] = (x[:, 1] > 0).astype(int)
    target: Any = ["target", "other"] if task == "multilabel" else "target"
    features = None if task == "multilabel" else frame.drop(columns="other")
    data = frame if features is None else features
    chosen = choose(data, client="who", target=target, task=task, budget="1h", out=tmp_path / "table", **QUICK)
    assert chosen.answer.draws == 2
    assert chosen.answer.metric.name == {"regression": "rmse"}.get(task, "accuracy")


def test_pixels(tmp_path: Path) -> None:
    base = hw.Experiment(data="shapes", rounds=2, fraction=0.1, engine={"workers": 1})
    chosen = choose(base, methods=["fedper"], draws=1, trials=0, budget="1h", out=tmp_path / "shapes")
    assert chosen.answer.metric.name in chosen.to_plain()["metric"]


def test_natural_clients_keep_their_test_samples_in_all_draws(tmp_path: Path) -> None:
    base = hw.Experiment(data="synthetic", partition="natural", rounds=1, split="6:2:2", engine={"workers": 1})
    base = hw.Experiment(**base.to_plain() | {"evaluate": {"test_draw": 0}})
    data = [prepare(hw.Experiment(**base.to_plain() | {"data_seed": d}), tmp_path).plan.data for d in (0, 1)]
    for c in range(4):
        first, second = (each.client(c) for each in data)
        assert first.test.x.tolist() == second.test.x.tolist()
        assert first.val.x.tolist() != second.val.x.tolist()


def test_made_clients_have_no_test_samples_to_keep(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", evaluate={"test_draw": 1})
    with pytest.raises(ConfigError, match=r"evaluate\.test_draw is 1, but partition is 'dirichlet': only natural"):
        prepare(base, tmp_path)


def test_a_budget_that_is_too_short_says_so_and_can_be_continued(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=6, engine={"workers": 1})
    more: dict[str, Any] = {"methods": ["fedper"], "draws": 2, "trials": 0, "out": tmp_path / "short"}
    with pytest.raises(RunError, match=r"budget is 0\.001 s, in which no method ended"):
        choose(base, budget=0.001, **more)
    assert choose(base, budget="1h", **more).answer.draws == 2


def test_more_time_keeps_what_is_finished_unless_it_allows_many_more_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every budget had another number of rounds, and began anew without what had been tried."""
    monkeypatch.setattr(choosing._Race, "_time_rounds", lambda race: (0.0, 0.4))  # pyright: ignore[reportPrivateUsage]
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=8, engine={"workers": 1})
    rounds: list[int] = []
    for budget in (60, 90, 120, 90):
        chosen = choose(base, budget=budget, methods=["fedper"], draws=2, trials=0, out=tmp_path / "race")
        rounds.append(chosen.answer.setting.run.manifest["experiment"]["rounds"])
        assert {row[0] for row in chosen.answer.screened[1]} == {"standalone", "fedavg", "fedavg-ft", "fedper"}
        assert chosen.words()[0].startswith("After ") == (rounds[-1] == 5)
    assert rounds == [5, 5, 8, 8]


def test_methods_that_were_named_and_not_tried_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "NAMED_FIRST", 0.0)
    clients = {f"c{k}": samples_of(k, 40) for k in range(3)}
    chosen = choose(clients, budget="1h", out=tmp_path / "race", **QUICK | {"methods": ["fedper", "fedrep"]})
    said = "There was no time for fedper, fedrep: a larger --budget tries all that was named."
    assert said in chosen.words()


def test_what_fell_behind_on_the_last_draw_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left out, after more draws than there were."""
    race = choosing._Race  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(race, "list_near", lambda race, names, draws: names[-1:] if len(draws) > 1 else names)
    clients = {f"c{k}": samples_of(k, 40) for k in range(3)}
    chosen = choose(clients, budget="1h", out=tmp_path / "race", **QUICK)
    assert read_json(tmp_path / "race" / "choose.json")["behind"]
    assert {row[0] for row in chosen.table()[1]} == {"standalone", "fedavg", "fedavg-ft", "fedper"}
    assert not chosen.answer.left_out


def test_one_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data has one client, but choose needs two or more"):
        choose({"a": samples_of(0, 40)}, out=tmp_path / "one", **QUICK)


def test_the_experiment_to_continue_with_trains_on_all_training_samples(tmp_path: Path) -> None:
    clients = {f"c{k}": samples_of(k, 40) for k in range(3)}
    best = read_toml(choose(clients, budget="1h", out=tmp_path / "race", **QUICK).out / "best.toml")
    assert "validation" not in best["evaluate"], "none is set aside by default"
    mine = choose(clients, budget="1h", out=tmp_path / "mine", **QUICK, evaluate={"validation": 0.3})
    assert read_toml(mine.out / "best.toml")["evaluate"]["validation"] == 0.3


def test_what_is_wrong_with_the_disk_ends_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to leave a method out."""
    run_to_end = choosing.run_to_end

    def fail(experiment: hw.Experiment, *rest: Any, **options: Any) -> hw.Run:
        if experiment.method.name == "fedavg":
            raise RunError("the disk is full.")
        return run_to_end(experiment, *rest, **options)

    clients = {f"c{c}": samples_of(c, 40) for c in range(3)}
    options: dict[str, Any] = {"rounds": 2, "draws": 1, "trials": 0, "methods": ["fedper"], "out": tmp_path / "race"}
    monkeypatch.setattr(choosing, "run_to_end", fail)
    with pytest.raises(RunError, match="the disk is full"):
        choose(clients, **options)
    monkeypatch.undo()
    assert "fedavg" in {row[0] for row in choose(clients, **options).table()[1]}


def test_little_time_gives_a_small_answer_that_says_so(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=5000, engine={"workers": 1})
    chosen = choose(base, budget="6s", out=tmp_path / "small")
    assert any("of 5,000 rounds" in sentence for sentence in chosen.words())
    assert any("methods that can do this were tried" in sentence for sentence in chosen.words())


def test_another_choice_needs_another_folder(tmp_path: Path) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=1, engine={"workers": 1})
    more: dict[str, Any] = {"methods": ["fedper"], "trials": 0, "out": tmp_path / "one", "budget": "1h"}
    choose(base, draws=1, **more)
    with pytest.raises(ConfigError, match=r"holds a choice that differs in draws: choose another --out"):
        choose(base, draws=2, **more)


def test_a_method_that_is_asked_for_but_can_not_run_is_an_error(tmp_path: Path) -> None:
    base = hw.Experiment(data="shapes", rounds=1, fraction=0.1)
    with pytest.raises(ConfigError, match="fedgh"):
        choose(base, methods=["fedgh"], out=tmp_path / "none")


def test_only_sums_leaves_out_servers_that_need_every_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=1, engine={"workers": 1})
    more: dict[str, Any] = {"only_sums": True, "draws": 1, "trials": 0, "budget": "1h"}
    monkeypatch.setattr(choosing, "read_portfolio", lambda: ["fedper", "fedfomo"])
    chosen = choose(base, **more, out=tmp_path / "sums")
    assert [row[0] for row in sorted(chosen.answer.screened[1])] == ["fedavg", "fedavg-ft", "fedper", "standalone"]
    assert chosen.answer.draws == 1
    with pytest.raises(ConfigError, match=r"method is 'fedfomo', but with --only-sums it can't be tried: its server"):
        choose(base, methods=["fedper", "fedfomo"], **more, out=tmp_path / "named")


def test_the_portfolio_has_every_method_once() -> None:
    assert sorted(read_portfolio()) == list_names("method")


@pytest.mark.parametrize("content", ["{}", '{"other": 1}', '{"about": 3, "spent": 1.0, "seconds": {}}', "[]"])
def test_a_damaged_journal_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "choose.json").write_text(content)
    base = hw.Experiment(data="digits", clients=4, fraction=0.2, rounds=2, engine={"workers": 1})
    with pytest.raises(RunError, match="is damaged: it is not the journal of a choice"):
        choose(base, methods=["fedper"], draws=2, trials=0, budget="1m", out=tmp_path)
