"""The published tables as data: complete, well formed, and the same as their source where that is at hand."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.app import registry
from headwise.errors import ConfigError
from headwise.papers.cells import RUN, ask_for, cells_of, experiment_of, recipe_of
from headwise.papers.tables import choose, describe_table, find, load, merge, papers
from headwise.settings.fields import difference

ROOT = Path(__file__).resolve().parents[2]
TINY = Path(__file__).parent / "tiny.toml"
NAMES = [f"{p.name.lower()}/{t.name}" for p in papers() for t in p.tables]
EXPECTED = {
    "fedah": ["1", "2", "3", "4", "5", "text"],
    "fedafk": ["1", "2", "3", "4", "5"],
    "fedgmh": ["2", "3", "4", "5", "6", "7", "rounds", "sizes"],
    "fedgh": ["1", "2", "3", "text", "classes", "participation", "header"],
    "fedftha": ["protocol", "heterogeneity"],
}


def script() -> Any:
    spec = importlib.util.spec_from_file_location("retype_tables", ROOT / "scripts" / "retype_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source() -> Path:
    """The facts that the tables were typed from; they are no part of the product."""
    folder = Path(os.environ.get("HEADWISE_DATA", ROOT.parent / "shared" / "data")).parent / "published"
    if not folder.is_dir():
        pytest.skip("the published numbers are not beside HEADWISE_DATA")
    return folder


def test_all_tables_of_the_five_papers_are_there() -> None:
    assert {p.name.lower(): [t.name for t in p.tables] for p in papers()} == EXPECTED


def test_each_number_is_that_of_the_source(source: Path) -> None:
    count = 0
    renamed = script().renamed
    for paper, table, facts in script().tables(source):
        ours = find(f"{paper}/{table}")[1]
        rows = facts.get("rows") or [
            {"method": c["what"], "column": "value", "mean": c["value"], "std": None} for c in facts["claims"]
        ]
        for row in rows:
            printed = ours.cell(renamed(row["method"]), renamed(row["column"]))
            assert (printed.mean, printed.std) == (pytest.approx(row["mean"]), row["std"]), (paper, table, row)
            count += 1
    assert count == sum(entry["rows"] for entry in json.loads((source / "index.json").read_text()).values())


def test_the_files_are_what_the_script_makes(source: Path) -> None:
    home = ROOT / "src" / "headwise" / "papers"
    made = script().files(source)
    assert made == {path.name: path.read_text(encoding="utf-8") for path in home.glob("*.numbers.toml")}


@pytest.mark.parametrize("rules", ["paper", "code"])
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_of_every_table_can_be_made_an_experiment(name: str, rules: str) -> None:
    paper, _ = find(name)
    if rules == "code" and paper.code is None:
        with pytest.raises(ConfigError, match="FedAFK has no public code"):
            ask_for(name, rules=rules)
        return
    for scale in paper.scales:
        ask = ask_for(name, rules=rules, scale=scale.name)
        for column in (c for c in ask.columns if c.measure in RUN):
            for recipe in (recipe_of(ask, m) for m in ask.methods):
                experiment = experiment_of(ask, column, recipe)
                moment = ask.moment(recipe, column)
                assert {"stale": "post"}.get(moment, moment) in experiment.evaluate.moments
                registry.make("method", experiment.method)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_described(name: str) -> None:
    paper, table = find(name)
    text = describe_table(name)
    for word in (table.title, paper.citation, *table.methods, *(c.name for c in table.columns)):
        assert word in text
    for scale in paper.scales:
        assert f"  {scale.name}: {scale.words}" in text
    assert all(note.text in text for note in table.notes)


def test_settings_are_those_of_the_paper() -> None:
    ask = ask_for("fedgmh/2", columns=["Cifar10 ExDir(2,0.5)"], methods=["fedgmh"])
    assert [c.name for c in ask.columns] == ["CIFAR-10 ExDir(2,0.5)"]
    e = experiment_of(ask, ask.columns[0], recipe_of(ask, "FedGMH"))
    assert (e.data.name, e.clients, e.rounds, e.sampling.ratio, e.split) == ("cifar10", 100, 200, 0.2, "75/25")
    assert (e.train.batch, e.train.epochs, e.train.lr, e.train.lr_decay) == (100, 2, 0.01, 0.99)
    assert (e.method.options["beta"], e.method.options["head_lr"]) == (0.5, 1.0)
    assert e.partition.options["alpha"] == 0.5


def test_the_code_differs_where_it_is_said_to_differ() -> None:
    def made(rules: str) -> Any:
        ask = ask_for("fedgmh/2", columns=["CIFAR-10 ExDir(2,0.5)"], rules=rules)
        return experiment_of(ask, ask.columns[0], recipe_of(ask, "FedGMH")), ask.moment(
            recipe_of(ask, "FedGMH"), ask.columns[0]
        )

    (paper, moment) = made("paper")
    (code, code_moment) = made("code")
    assert (paper.method.options["mask"], code.method.options["mask"]) == ("critical_global", "critical_local")
    assert (paper.train.drop_last, code.train.drop_last) == (False, True)
    assert (paper.train.lr_decay_per, code.train.lr_decay_per) == ("round", "participation")
    assert (moment, code_moment) == ("stale", "pre")


def test_the_code_of_fedgmh_is_imitated_as_far_as_it_is_said() -> None:
    """Its window of 20 rounds holds 20 measurements; its baselines and ablations have its own constants."""
    paper, code = (ask_for("fedgmh/5", rules=r) for r in ("paper", "code"))
    assert (paper.metric, code.metric, code.window) == ("client_mean", "accuracy", 20)
    made = {m: experiment_of(code, code.columns[0], recipe_of(code, m)) for m in ("GMH-o", "FedGMH")}
    assert all(e.evaluate.every == 1 for e in made.values())
    assert registry.make("method", made["GMH-o"].method).zero_fallback
    ask = ask_for("fedgmh/2", rules="code")
    experiments = {m: experiment_of(ask, ask.columns[0], recipe_of(ask, m)) for m in ("FedGH", "FedAvg")}
    header = registry.make("method", experiments["FedGH"].method)
    assert (header.header_lr, header.header_step, header.pooled_batch) == (1.0, "pooled", 100)
    assert experiments["FedAvg"].evaluate.every == 1


def test_nothing_that_was_not_printed_is_said_to_be() -> None:
    """FedGH's epochs, batches and rounds were searched: its full scale must not call itself as printed."""
    (full, *_) = find("fedgh/3")[0].scales
    opened = find("fedgh/3")[0].open[0]
    assert full.words != "as printed" and "does not print" in full.words and "are not printed" in opened
    ten = ask_for("fedgh/3", scale="e10", columns=["CIFAR-10 accuracy"])
    assert experiment_of(ten, ten.columns[0], recipe_of(ten, "FedGH")).train.epochs == 10


def test_quick_keeps_the_number_of_steps() -> None:
    for column in ask_for("fedgh/1").columns:
        full, quick = (ask_for("fedgh/1", scale=s) for s in ("full", "quick"))
        a, b = (experiment_of(ask, column, recipe_of(ask, "FedGH")) for ask in (full, quick))
        assert a.train.batch * b.fraction == b.train.batch
        assert (a.clients, a.sampling, a.partition, a.train.epochs) == (
            b.clients,
            b.sampling,
            b.partition,
            b.train.epochs,
        )


def test_a_column_varies_an_option_of_the_papers_method_only() -> None:
    ask = ask_for("fedafk/1", methods=["fedafk", "standalone"])
    options = {c.experiment.method.name: c.experiment.method.options for c in cells_of(ask)}
    assert options["standalone"] == {}
    with_sweep = [c.experiment.method.options["lam"] for c in cells_of(ask) if c.experiment.method.name == "fedafk"]
    assert with_sweep == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def test_cells_are_shared_and_know_no_machine() -> None:
    one, other = (ask_for(n, columns=["CIFAR-10 ExDir(2,0.5)"], methods=["fedgmh"]) for n in ("fedgmh/2", "fedgmh/5"))
    assert [c.key for c in cells_of(one)] == [c.key for c in cells_of(other)]
    ablation = ask_for("fedafk/5", columns=["MNIST"], methods=["w/o AFA & KT"])
    assert len(cells_of(ablation)) == 1, "it is Standalone, which is run anyway"
    accuracy_and_rounds = ask_for("fedgh/3", columns=["CIFAR-10"], methods=["fedgh"])
    assert [c.method for c in cells_of(accuracy_and_rounds)] == ["Standalone", "FedGH"]
    assert len({c.key for c in cells_of(ask_for("fedgmh/5", seeds=2))}) == 2 * 3 * 5


def test_names_are_found_by_their_words() -> None:
    names = ["CIFAR-10 accuracy", "CIFAR-100 accuracy", "LG-FedAvg", "FedAvg", "w/o KT"]
    assert choose(["cifar10"], names, "columns") == ["CIFAR-10 accuracy"]
    assert choose(["accuracy"], names, "columns") == names[:2]
    assert choose(["fedavg", "lg-fedavg", "w/o kt"], names, "methods") == ["FedAvg", "LG-FedAvg", "w/o KT"]
    with pytest.raises(ConfigError, match=r"columns is 'cifar', which is not in the table"):
        choose(["cifar"], names, "columns")


def test_roman_numbers_are_tables_too() -> None:
    assert find("FedAH/IV")[1] is find("fedah/4")[1]


def test_later_settings_win_and_tables_are_merged() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}}, {"d": {"e": 5}}) == {
        "a": {"b": 4, "c": 2},
        "d": {"e": 5},
    }


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("clients = 3", 'clients = "3', "is not valid TOML"),
        ('moment = "stale"', 'moment = "later"', "moment is 'later'"),
        ("seeds = 2", "seed = 2", "seed is not a setting: did you mean 'seeds'?"),
        ('["FedAvg", "99.00 ± 0.50", "1", ', '["FedAvg", "99.00 ± 0.50", ', "table 1: FedAvg does not fit"),
        ('name = "FedProx"', 'name = "FedProxy"', "table 1: FedProx does not fit"),
        ('columns = ["skewed"]', 'columns = ["skewd"]', "table 1: skewd does not fit"),
        ('target = 0.4', "target = 4", "target is 4.0, but must be from 0 to 1"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_sentence(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    text = TINY.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "bad.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load(str(tmp_path / "bad.toml"))
    assert sentence in str(error.value)


@pytest.mark.parametrize("args", [["list", "papers"], ["describe", "fedgmh/2"], ["reproduce", "--help"]])
def test_looking_at_papers_does_not_wait_for_torch(args: list[str]) -> None:
    code = f"from headwise.cli import cli; cli.main({args}, standalone_mode=False)"
    code += "\nimport sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_settings_that_are_as_usual_do_not_make_another_cell() -> None:
    """A version that adds settings still finds what was run before."""
    usual: dict[str, Any] = {"rounds": 5, "train": {"lr": 0.1, "batch": 10}}
    before = {"rounds": 7, "train": {"lr": 0.1, "batch": 20}}
    after = {"rounds": 7, "train": {"lr": 0.1, "batch": 20, "new": None}, "section": {"x": 1}}
    changes = difference(before, usual)
    assert changes == {"rounds": 7, "train": {"batch": 20}}
    assert difference(after, {**usual, "train": {**usual["train"], "new": None}, "section": {"x": 1}}) == changes
    assert difference(after, usual) != changes


def test_every_cell_of_a_table_has_its_own_key() -> None:
    cells = cells_of(ask_for("fedafk/2"))
    assert len({c.key for c in cells}) == len({json.dumps(c.experiment.to_plain(), sort_keys=True) for c in cells}) > 1


@pytest.mark.parametrize("name", ["fedgmh/2", "fedgmh/3", "fedgmh/4", "fedgmh/6"])
def test_the_code_of_fedgmh_takes_its_authors_draw(name: str) -> None:
    drawn = {r: [c.experiment.partition for c in cells_of(ask_for(name, rules=r))] for r in ("paper", "code")}
    assert {p.name for p in drawn["paper"]} == {"exdir"}
    assert {p.name for p in drawn["code"]} == {"public-exdir"}
    options = [[(p.options["classes_per_client"], p.options["alpha"]) for p in drawn[r]] for r in ("paper", "code")]
    assert set(options[0]) == set(options[1])
