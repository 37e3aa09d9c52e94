"""Every kind of file of a user's, edited between two calls of every command: right numbers, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_code
from test_code import EDITS, FILES, METHODS, SETTINGS, forget_metrics, forget_modules, stop

import headwise as hw
from headwise.disk.jsontext import to_toml
from headwise.errors import HeadwiseError
from headwise.league.cells import find_federations
from headwise.league.play import play
from headwise.papers.cells import ask_for, cells_of
from headwise.papers.reproduce import reproduce

TOML = 'format = "csv"\npath = "t.csv"\nclient = "clinic"\ntarget = "y"\n[features]\nnumber = ["a", "b"]\n'
CHANGES: dict[str, Callable[[str], str]] = {
    **EDITS,
    "metric": lambda text: text.replace("0.25", "0.125"),
    "data": lambda text: text.replace(",0\n", ",9\n").replace(",1\n", ",0\n").replace(",9\n", ",1\n", 7),
    "description": lambda text: text.replace('["a", "b"]', '["a"]'),
}
EDITED = {**FILES, "metric": "own_metric.py", "data": "t.csv", "description": "data.toml"}
OWN: dict[str, Any] = {**{"metric": {"evaluate": {"metric": "mine"}}, "data": {}, "description": {}}, **SETTINGS}


def settings_of(kind: str) -> dict[str, Any]:
    if kind in ("data", "description"):
        return {"data": "data.toml", "partition": "natural", "rounds": 2, **OWN[kind]}
    return {"data": "synthetic:80:4:8", "clients": 3, "rounds": 2, **OWN[kind]}


def experiment(kind: str) -> hw.Experiment:
    return hw.Experiment(method=METHODS.get(kind, "fedavg"), engine={"workers": 1}, **settings_of(kind))


def scores_of(run: hw.Run) -> Any:
    return run.rounds[-1]["pre"], [*run.last_scores()["pre"].values()]


def compare(kind: str, out: str) -> Any:
    own = experiment(kind)
    return [scores_of(run) for line in hw.compare(own, [own.method.name], 1, out).setting.lines for run in line.runs]


def grid(kind: str, out: str) -> Any:
    own = experiment(kind)
    cells = hw.compare(own, [own.method.name], 1, out, grid={"train.lr": [0.01, 0.1]}).grid
    return [scores_of(run) for cell in cells for run in cell.line.runs]


def resume(kind: str, out: str) -> Any:
    """Of a run that was interrupted before the edit; in a new folder, a whole run."""
    if Path(out).exists():
        return scores_of(hw.resume(out))
    if out == "fresh":
        return scores_of(hw.run(experiment(kind), out))
    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment(kind), out, observers=[stop])
    return None


def tune(kind: str, out: str) -> Any:
    tuned = hw.tune(experiment(kind), trials=1, out=out)
    return [trial["score"] for trial in tuned.trials], scores_of(hw.Run(tuned.out / "trial-000"))


def choose(kind: str, out: str) -> Any:
    base = hw.Experiment(**{**experiment(kind).to_plain(), "method": "fedavg"})
    answer = hw.choose(base, methods=[METHODS.get(kind, "fedper")], draws=1, trials=0, out=out).answer.to_plain()
    return answer["validation"], answer["test"]


PAPER = """
name = "Own"
citation = "Nobody"
moment = "pre"
[[scales]]
name = "full"
words = "as printed"
[[methods]]
name = "Mine"
method = "METHOD"
[[tables]]
name = "1"
title = "A table of one's own"
rows = [["Mine", "99.0"]]
[[tables.columns]]
name = "even"
[changes]
"""


def repeat_table(kind: str, out: str) -> Any:
    """Finished cells are shared by all folders."""
    lines = [f"{name} = {to_toml(value)}" for name, value in settings_of(kind).items()]
    Path("paper.toml").write_text(PAPER.replace("METHOD", METHODS.get(kind, "fedavg")) + "\n".join(lines))
    cells = Path("fresh-cells" if out == "fresh" else "cells")
    ask = ask_for(f"{Path.cwd()}/paper.toml/1")
    reproduce(ask, Path(out), cells=cells)
    return [scores_of(hw.Run(cells / cell.folder)) for cell in cells_of(ask)]


def repeat_table_elsewhere(kind: str, out: str) -> Any:
    """With a new --out, which served old cells."""
    return repeat_table(kind, f"{out}-{Path(out).exists() or Path(f'{out}-False').exists()}" if out == "out" else out)


def league(kind: str, out: str) -> Any:
    lines = [f"{name} = {to_toml(value)}" for name, value in settings_of(kind).items()]
    Path("own.toml").write_text(
        "\n".join(['title = "Own"', 'kind = "tiny"', "[experiment]", 'split = "6:2:2"', *lines])
    )
    federations = find_federations("v1", ["own.toml"])
    played = play(federations, Path(out), Path(), methods=[METHODS.get(kind, "fedavg")], draws=[0])
    return [(result.mean_client, result.scores, result.error) for result in played.results]


VERBS: dict[str, Callable[[str, str], Any]] = {
    "compare": compare, "grid": grid, "resume": resume, "tune": tune, "choose": choose, "reproduce": repeat_table,
    "reproduce elsewhere": repeat_table_elsewhere, "league": league,
}  # fmt: skip
here = test_code.here
metric = test_code.metric


@pytest.fixture
def folder(here: Path, metric: Path) -> Path:
    """With a metric that is installed, a table and its data.toml beside the files of `here`."""
    rows = [f"{k % 5 / 3},{(k * 7) % 11 / 5},{k % 3},{(k * k) % 2}" for k in range(90)]
    Path("t.csv").write_text("\n".join(["a,b,clinic,y", *rows]) + "\n")
    Path("data.toml").write_text(TOML)
    return here


def edit(kind: str) -> None:
    path = Path(EDITED[kind])
    before = path.read_text()
    path.write_text(CHANGES[kind](before))
    assert path.read_text() != before
    forget_modules()
    forget_metrics()


@pytest.mark.parametrize("verb", [pytest.param(v, marks=pytest.mark.long if v == "choose" else ()) for v in VERBS])
@pytest.mark.parametrize("kind", CHANGES)
def test_right_numbers_or_a_refusal(kind: str, verb: str, folder: Path) -> None:
    first = VERBS[verb](kind, "out")
    edit(kind)
    fresh = VERBS[verb](kind, "fresh")
    assert fresh != first
    refusal = ""
    again = None
    try:
        again = VERBS[verb](kind, "out")
    except HeadwiseError as error:
        refusal = str(error)
    assert again == fresh or any(word in refusal for word in ("changed", "other", "another"))
