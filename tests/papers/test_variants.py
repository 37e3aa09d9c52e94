"""Tables with settings that somebody set or with_sweep: they reach the runs, and the page says so."""

from __future__ import annotations

import pytest

from headwise.errors import ConfigError
from headwise.papers.cells import Ask, ask_for, cells_of, with_settings, with_sweep
from headwise.papers.results import Reproduction, Row
from headwise.papers.tables import Printed

GMH = {"columns": ["CIFAR-10 ExDir(2,0.5)"], "methods": ["FedPer", "FedGMH"]}


def ask() -> Ask:
    return ask_for("fedgmh/2", **GMH)


def test_settings_reach_every_run_and_options_those_that_have_them() -> None:
    changed = with_settings(ask(), ["train.drop_last=true", "method.beta=0.25"])
    made = {c.method: c.experiment for c in cells_of(changed)}
    assert made.keys() == {"Standalone", "FedPer", "FedGMH"}
    assert all(e.train.drop_last and e.train.batch == 100 for e in made.values())
    assert made["FedGMH"].method.options["beta"] == 0.25
    assert "beta" not in made["FedPer"].method.options
    assert {c.key for c in cells_of(changed)}.isdisjoint(c.key for c in cells_of(ask()))


def test_an_option_keeps_the_name_and_the_other_options_of_what_the_column_chose() -> None:
    table = ask_for("fedgmh/2", columns=["CIFAR-10 ExDir(2,0.5)"], methods=["FedGMH"], rules="code")
    before = {c.experiment.partition.name: c.experiment.partition.options for c in cells_of(table)}
    changed = cells_of(with_settings(table, ["partition.numpy_seed=2"]))
    assert {c.experiment.partition.name: c.experiment.partition.options for c in changed} == {
        name: {**options, "numpy_seed": 2} for name, options in before.items()
    }


def test_a_scale_does_not_undo_what_was_set() -> None:
    changed = with_settings(ask_for("fedgmh/2", scale="60r", **GMH), ["rounds=7"])
    assert {c.experiment.rounds for c in cells_of(changed)} == {7}


def test_a_sweep_runs_each_value_and_standalone_once() -> None:
    changed = with_sweep(ask(), "method.beta=0.1,0.3,0.5")
    cells = [(c.method, c.experiment.method.options.get("beta")) for c in cells_of(changed)]
    assert sorted(cells, key=repr) == [
        ("FedGMH", 0.1),
        ("FedGMH", 0.3),
        ("FedGMH", 0.5),
        ("FedPer", None),
        ("Standalone", None),
    ]
    assert [c.name for c in changed.columns] == [f"CIFAR-10 ExDir(2,0.5), method.beta={v}" for v in (0.1, 0.3, 0.5)]
    assert all(changed.table.cell(m, c.name).missing for m in changed.methods for c in changed.columns)


def test_a_sweep_of_training_goes_through_all_methods() -> None:
    changed = with_sweep(ask(), "train.epochs=1,4")
    assert sorted(c.experiment.train.epochs for c in cells_of(changed)) == [1, 1, 1, 4, 4, 4]


def test_the_page_says_what_was_set_by_hand() -> None:
    plain = ask()
    changed = with_sweep(with_settings(ask(), ["train.lr=0.1"]), "method.beta=0.1,0.3")
    row = Row("FedGMH", "a column", Printed("- not printed"), "nothing printed to compare with")
    page = Reproduction(changed, (row,), "headwise reproduce fedgmh/2").markdown()
    assert "**Set by hand: train.lr=0.1, method.beta=0.1,0.3.**" in page
    assert "- Set by hand, not the paper's: train.lr=0.1." in page
    assert Reproduction(changed, (row,)).to_plain()["set"] == ["train.lr=0.1", "method.beta=0.1,0.3"]
    assert "by hand" not in Reproduction(plain, (row,), "headwise").markdown()
    assert changed.folder == "fedgmh-2-train.lr=0.1-method.beta=0.1,0.3" != plain.folder


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("train.lr", "--set is 'train.lr', but must look like train.lr=0.1"),
        ("seed=3", "set is 'seed=3', but seed is chosen by --seeds"),
        ("method=fedper", "set is 'method=fedper', but method is chosen by --methods"),
        ("method.gamma=1", "set is 'method.gamma', which none of FedPer, FedGMH has: allowed are beta, "),
        ("method.betta=1", r"set is 'method.betta', which none of FedPer, FedGMH has: did you mean 'beta'\?$"),
        ("train.lr=-1", "train.lr is -1"),
    ],
)
def test_a_setting_that_cannot_be_is_one_sentence(settings: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cells_of(with_settings(ask(), [settings]))


def test_a_setting_has_one_value() -> None:
    with pytest.raises(ConfigError, match=r"^rounds is set twice, by 'rounds=3' and 'rounds=4': give it once\.$"):
        with_settings(ask(), ["rounds=3", "train.lr=0.1", "rounds=4"])
    swept = r"^method.beta is set twice, by 'method.beta=0.2' and 'method.beta=0.1,0.3': give it once\.$"
    with pytest.raises(ConfigError, match=swept):
        with_sweep(with_settings(ask(), ["method.beta=0.2"]), "method.beta=0.1,0.3")
    with pytest.raises(ConfigError, match=r"^method.beta is set twice"):
        with_sweep(with_sweep(ask(), "method.beta=0.1,0.3"), "method.beta=0.5,0.7")


def test_other_settings_than_the_papers_are_not_compared_with_print() -> None:
    assert not with_settings(ask(), ["evaluate.every=2"]).changed
    assert with_settings(ask(), ["rounds=3"]).changed
    assert with_sweep(ask(), "method.beta=0.1,0.3").changed


@pytest.mark.parametrize("sweep", ["method.beta", "method.beta=0.1", "method.beta=0.1,0.1", "method.beta="])
def test_a_sweep_without_values_is_one_sentence(sweep: str) -> None:
    with pytest.raises(ConfigError, match=r"sweep is 'method.beta.*', but must look like method.beta=0.1,0.3"):
        with_sweep(ask(), sweep)


def test_a_sweep_of_what_is_not_trained_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="but nothing is trained in these columns of fedgh/2"):
        with_sweep(ask_for("fedgh/2"), "train.lr=0.1,0.2")


def test_an_option_can_be_set_for_a_method_named_by_its_preset() -> None:
    table = ask_for("fedah/1", columns=["CIFAR-100 Dir(0.1)"], methods=["FedAH"])  # runs fedah@paper
    made = {c.method: c.experiment for c in cells_of(with_settings(table, ["method.weight_lr=0.5"]))}
    assert made["FedAH"].method.options["weight_lr"] == 0.5


def test_two_sweeps_give_all_pairs() -> None:
    changed = with_sweep(with_sweep(ask(), "train.epochs=1,4"), "train.batch=8,16")
    trained = {(c.experiment.train.epochs, c.experiment.train.batch) for c in cells_of(changed)}
    assert trained == {(1, 8), (1, 16), (4, 8), (4, 16)}
    assert [c.name.split(", ")[-2:] for c in changed.columns[:2]] == [
        ["train.epochs=1", "train.batch=8"],
        ["train.epochs=1", "train.batch=16"],
    ]
    assert changed.set_by_hand == ("train.epochs=1,4", "train.batch=8,16")


def test_the_best_of_a_sweep_is_named() -> None:
    changed = with_sweep(with_sweep(ask(), "train.epochs=1,4"), "train.batch=8,16")
    rows = tuple(
        Row(method, column.name, Printed("-"), "", ours=(float(10 * m + c),))
        for m, method in enumerate(("FedPer", "FedGMH"))
        for c, column in enumerate(changed.columns[:4])
    )
    names = [w for w in Reproduction(changed, rows).words() if w.startswith("Best of the sweep")]
    column = changed.columns[0].name.split(", train.")[0]
    assert names == [
        f"Best of the sweep, chosen on test samples: {method}, {column}: train.epochs=4, train.batch=16 ({best} %)."
        for method, best in (("FedPer", "3.00"), ("FedGMH", "13.00"))
    ]
