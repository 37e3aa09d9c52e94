"""Who takes part in a round."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from bench_of_tests import even_federation, play, prepare
from scipy.stats import chisquare

from headwise.engine.sampling import sample
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedper import FedPer
from headwise.methods.standalone import Standalone
from headwise.settings.options import Sampling


@pytest.mark.parametrize(
    ("ratio", "clients", "wanted"),
    [
        (1, 20, 20),
        (0.1, 20, 2),
        (0.19, 20, 3),
        (0.29, 100, 29),
        (0.01, 20, 1),
        (0.999, 20, 19),
        (1e-9, 1, 1),
        (1, 1, 1),
    ],
)
def test_the_number_of_clients_is_the_ratio_rounded_down_but_at_least_one(
    ratio: float, clients: int, wanted: int
) -> None:
    for t in range(1, 10):
        assert len(sample(Sampling(ratio), clients, 0, t)) == wanted


def test_clients_are_different_ascending_and_in_range() -> None:
    for t in range(1, 50):
        found = sample(Sampling(0.4), 20, 3, t)
        assert found == sorted(set(found))
        assert found[0] >= 0
        assert found[-1] < 20


def test_a_range_of_ratios_is_drawn_evenly_from_end_to_end() -> None:
    sizes = Counter(len(sample(Sampling(1.0, 0.5), 10, 0, t)) for t in range(1, 1201))
    assert sorted(sizes) == [5, 6, 7, 8, 9, 10]
    assert chisquare(list(sizes.values())).pvalue > 0.001


def test_a_range_that_rounds_to_nobody_starts_at_one() -> None:
    assert {len(sample(Sampling(0.3, 0.01), 10, 0, t)) for t in range(1, 100)} == {1, 2, 3}


def test_every_client_is_drawn_equally_often_and_independently_of_the_round_before() -> None:
    rounds = [sample(Sampling(0.3), 10, 7, t) for t in range(1, 1001)]
    counts = Counter(c for chosen in rounds for c in chosen)
    assert sum(counts.values()) == 3000
    assert chisquare([counts[c] for c in range(10)]).pvalue > 0.001
    again = sum(len({*a} & {*b}) for a, b in pairwise(rounds)) / 999
    assert again == pytest.approx(3 * 3 / 10, abs=0.1)


def test_the_draw_depends_on_seed_and_round_alone() -> None:
    first = [sample(Sampling(0.5), 20, 0, t) for t in range(1, 6)]
    assert first == [sample(Sampling(0.5), 20, 0, t) for t in range(1, 6)]
    assert len({tuple(s) for s in first}) == 5
    assert first != [sample(Sampling(0.5), 20, 1, t) for t in range(1, 6)]


def test_every_method_sees_the_same_clients() -> None:
    data = even_federation()
    drawn = [
        [row["clients"] for row in play(prepare(method, data, sampling=Sampling(0.5), rounds=4)).rows]
        for method in (FedAvg(), FedPer(), Standalone())
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({tuple(clients) for clients in drawn[0]}) > 1
