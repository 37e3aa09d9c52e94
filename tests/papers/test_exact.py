"""Tables that need no training are exact, and where print contradicts itself that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwise as hw
from headwise.app import registry
from headwise.papers.arithmetic import CLAIMS, messages
from headwise.papers.cells import ask_for
from headwise.papers.reproduce import exact_rows
from headwise.papers.results import SMALL, judge_accuracy, judge_exact, judge_rounds
from headwise.papers.tables import CountedOn, Printed
from headwise.settings.choices import Choice
from headwise.settings.experiment import experiment_from

MULTIPLIED = "agrees: printed rounds, our messages"


def verdicts(name: str, **chosen: list[str]) -> dict[tuple[str, str], str]:
    return {place: row.verdict for place, row in exact_rows(ask_for(name, **chosen)).items()}


def test_networks_of_fedgh_are_as_printed_but_for_the_sizes_that_are_not() -> None:
    verdict_of = verdicts("fedgh/2")
    size = "model size MB"
    assert {place: v for place, v in verdict_of.items() if v != "exact"} == {
        ("CNN-4", size): "differs by +0.23",
        ("CNN-5", size): "differs by +0.01",
    }
    assert len(verdict_of) == 30


def test_traffic_of_fedgh_is_exact() -> None:
    columns = ["CIFAR-10 KB per client and round", "CIFAR-10 KB to target"]
    verdict_of = verdicts("fedgh/3", columns=columns)
    missing = {(m, c) for m in ("FML", "FedKD") for c in columns}
    assert {place for place, v in verdict_of.items() if v == "nothing printed to compare with"} == missing
    expected = {"CIFAR-10 KB per client and round": "exact", "CIFAR-10 KB to target": MULTIPLIED}
    assert {place: v for place, v in verdict_of.items() if place not in missing} == {
        (m, c): expected[c] for m, c in verdict_of if (m, c) not in missing
    }
    assert len(verdict_of) == 14


def test_traffic_with_a_hundred_classes_is_exact() -> None:
    methods = ["LG-FedAvg", "FedProto", "FedGH"]
    verdict_of = verdicts("fedgh/3", columns=["CIFAR-100 KB"], methods=methods)
    assert verdict_of == {(m, c): MULTIPLIED if "target" in c else "exact" for m in methods for _, c in verdict_of}


def test_formulas_hold_for_our_messages() -> None:
    methods = ["FedAvg", "FedPer", "FedFomo", "FedAH"]
    columns = ["parameters per client and round"]
    assert set(verdicts("fedah/3", columns=columns, methods=methods).values()) == {"exact"}
    assert set(verdicts("fedafk/4", columns=columns, methods=["FedRep", "FedAFK"]).values()) == {"exact"}


def test_a_formula_that_does_not_hold_is_found() -> None:
    assert judge_exact(Printed("2 * Sigma = 100", 100.0), 98.0, 0.0) == "differs by -2.00"


def test_sizes_of_fedgmh_are_exact_but_for_a_product_of_a_rounded_one() -> None:
    verdict_of = {method: v for (method, _), v in verdicts("fedgmh/sizes").items()}
    assert verdict_of.pop("download with 100 labels KB") == "differs by -0.09"
    assert set(verdict_of.values()) == {"exact"}
    assert len(verdict_of) == 9


def test_claims_of_texts_follow_from_tables() -> None:
    """Print against print: nothing of ours is exact in that."""
    follows = "follows from the printed tables"
    assert set(verdicts("fedah/text").values()) == {follows}
    assert [*verdicts("fedgh/text").values()] == ["differs by +0.01", *[follows] * 3, "differs by -0.01"]


def test_every_claim_is_computed() -> None:
    claims = {(name, m) for name in ("fedgmh/sizes", "fedgh/text", "fedah/text") for m in ask_for(name).methods}
    assert claims == {(table, what) for table, compute in CLAIMS.items() for what in compute()}


def test_counted_messages_are_those_of_a_run(tmp_path: Path) -> None:
    """The second round of a real run sends what is counted on made-up samples."""
    plain = {
        "method": "fedproto",
        "data": "digits",
        "model": "mlp:6",
        "partition": "shamsian:2",
        "clients": 5,
        "rounds": 2,
    }
    experiment = experiment_from(plain)
    row = hw.run(experiment, tmp_path / "run").rounds[-1]
    task = CountedOn((64,), classes=10, own=2, clients=5)
    down, up = messages(registry.resolve_all(experiment), task)
    assert (down * 5, up * 5) == (row["bytes_down"], row["bytes_up"])
    assert messages(registry.resolve_all(experiment_from({**plain, "method": "standalone"})), task) == (0, 0)
    assert registry.make("model", Choice.parse("mlp:6", "model"))


@pytest.mark.parametrize(
    ("printed", "ours", "floor", "verdict"),
    [
        ("93.92 ± 0.15", 93.7, 90.0, "within the published spread"),
        ("93.92 ± 0.15", 93.1, 90.0, "within 1 point"),
        ("93.92 ± 0.15", 95.42, 90.0, "off: 1.50 points above, 10 published standard deviations"),
        ("93.92", 92.0, 90.0, "off: 1.92 points below"),
        ("93.92 ± 0.15", 89.0, 90.0, "off: 4.92 points below, 33 published standard deviations, below the floor"),
        ("31.30 ± 1.05", 31.0, 90.0, "within the published spread, below the floor as in print"),
        ("99.71 ± 0.00", 99.71, None, "within the published spread"),
        ("- did not converge", 50.0, 40.0, "nothing printed to compare with"),
    ],
)
def test_verdicts_on_accuracies(printed: str, ours: float, floor: float | None, verdict: str) -> None:
    assert judge_accuracy(Printed.parse(printed, ""), ours, floor) == verdict


def test_a_small_scale_is_never_compared_in_standard_deviations() -> None:
    printed = Printed.parse("93.92 ± 0.15", "")
    assert judge_accuracy(printed, 70.0, 60.0, unlike=SMALL) == "small scale, order of methods only"
    assert judge_accuracy(printed, 70.0, 80.0, unlike=SMALL) == "small scale, order of methods only, below the floor"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (None, "not reached in 300 rounds"),
        (68.0, "the same round"),
        (70.0, "2 rounds later"),
        (60.0, "8 rounds earlier"),
    ],
)
def test_verdicts_on_rounds(ours: float | None, verdict: str) -> None:
    assert judge_rounds(Printed.parse("68", ""), ours, 300) == verdict


@pytest.mark.parametrize(
    ("text", "mean", "std", "digit"),
    [
        ("88.30 ± 0.95", 88.3, 0.95, 0.01),
        ("149.07 MB", 149.07 * 1024, None, 10.24),
        ("39.14 KB", 39.14, None, 0.01),
        ("11", 11.0, None, 1.0),
        ("2 * Sigma", None, None, 0.0),
        ("- fails to converge", None, None, 0.0),
    ],
)
def test_printed_cells_are_read(text: str, mean: float | None, std: float | None, digit: float) -> None:
    printed = Printed.parse(text, "")
    assert (printed.mean, printed.std, printed.text) == (pytest.approx(mean), std, text)
    assert printed.last_digit == pytest.approx(digit)
    assert printed.missing is text.startswith("-")
