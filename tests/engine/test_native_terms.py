"""Adam, and gradients with a pull towards an anchor and a shift, in the native step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_chains import BUILDS, NamedTerms, chains, learned, some_feed, taught
from torch import nn

from headwise.engine.kernels.optimizer import Adam, Rates

RATES = [
    Rates(0.1),
    Rates(0.1, 0.5, 0.01),
    Rates(0.1, clip=0.2),
    Rates(0.02, adam=Adam(0.9, 0.99, 1e-3, decoupled=False), weight_decay=0.1, clip=0.5),
    Rates(0.02, adam=Adam(0.5, 0.9, 1e-3, decoupled=True), weight_decay=0.1),
]


def some_terms(network: nn.Module, kind: str) -> NamedTerms:
    """For every second weight, so that some have none."""
    rng = torch.Generator().manual_seed(5)
    drawn = {k: torch.randn(p.shape, generator=rng) for k, p in [*network.named_parameters()][::2]}
    return 0.3, drawn if "pull" in kind else {}, {k: t / 7 for k, t in drawn.items()} if "shift" in kind else {}


@given(chains(), st.sampled_from(RATES), st.sampled_from(["none", "pull", "shift", "pull and shift"]))
@settings(max_examples=60)
def test_steps_are_those_of_the_optimizer_on_every_cpu(chain: Any, rates: Rates, kind: str) -> None:
    network, shape, classes = chain
    feed, terms = some_feed(shape, classes), some_terms(network, kind)
    states = [learned(network, [network], feed, rates, name, terms=terms) for name in BUILDS]
    for state in states[1:]:
        assert all(torch.equal(state[k], t) for k, t in states[0].items())
    for k, t in taught(network, [network], feed, rates, terms=terms).items() if states else ():
        torch.testing.assert_close(states[0][k].double(), t, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", BUILDS)
def test_an_anchor_may_be_laid_out_in_any_way(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3))
    feed, anchor = some_feed((2, 4, 4), 3), torch.randn(3, 2, 3, 3)
    last = anchor.contiguous(memory_format=torch.channels_last)
    plain, turned = (
        learned(network, [network], feed, Rates(0.1), name, terms=(0.5, {"0.weight": t}, {})) for t in (anchor, last)
    )
    assert all(torch.equal(plain[k], t) for k, t in turned.items())
    without = learned(network, [network], feed, Rates(0.1), name)
    assert not torch.equal(plain["0.weight"], without["0.weight"])
