"""The mathematics that the schemes share: cutting, dealing, and repairs that keep to the owners of a class."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.partition.base import count_labels, cut, deal, divide_evenly, lift
from headwise.data.partition.dirichlet import Dirichlet

DIGITS = np.random.default_rng(0).permutation(np.arange(1_797) % 10)


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda s: sum(s) > 1e-3), st.integers(0, 10**7))
def test_cut_adds_up(shares, n):
    sizes = cut(np.array(shares), n)
    exact = np.array(shares) / sum(shares) * n
    assert sizes.sum() == n
    assert (np.abs(sizes - exact) <= 1 + 1e-6 * n).all()
    assert (sizes[np.array(shares) == 0] == 0).all()


def test_even():
    assert list(divide_evenly(10, 4)) == [2, 3, 2, 3]


def test_deal_inverts_histograms():
    counts = count_labels(DIGITS, Dirichlet().divide(DIGITS, 20, rng_of(), None), 10)
    assert np.array_equal(count_labels(DIGITS, deal(DIGITS, counts, rng_of(3)), 10), counts)


def test_lift_passes_samples_on_over_others():
    """Client 2 needs class 1; only client 1 has it and is at the minimum, but takes class 0 from client 0 instead."""
    counts = np.array([[9, 0], [0, 3], [0, 1]])
    lifted = lift(counts, 3, np.array([[True, False], [True, True], [False, True]]))
    assert lifted is not None
    assert lifted.tolist() == [[7, 0], [2, 1], [0, 3]]
    assert counts.tolist() == [[9, 0], [0, 3], [0, 1]]
    assert lift(counts, 3, np.array([[True, False], [False, True], [False, True]])) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_lift_finds_a_repair_whenever_there_is_one(clients, classes, seed):
    """A matrix in which everyone has enough, scattered among the owners, can always be mended."""
    rng = rng_of(seed)
    allowed = rng.random((clients, classes)) < 0.5
    allowed[np.arange(clients), rng.integers(0, classes, clients)] = True
    good = rng.integers(1, 5, (clients, classes)) * allowed
    least = int(good.sum(1).min())
    scattered = np.zeros_like(good)
    for k in np.flatnonzero(allowed.any(0)):
        np.add.at(scattered[:, k], rng.choice(np.flatnonzero(allowed[:, k]), good[:, k].sum()), 1)
    lifted = lift(scattered, least, allowed)
    assert lifted is not None
    assert (lifted.sum(1) >= least).all()
    assert (lifted >= 0).all()
    assert not lifted[~allowed].any()
    assert np.array_equal(lifted.sum(0), good.sum(0))
