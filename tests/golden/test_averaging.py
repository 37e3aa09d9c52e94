"""Whatever a method shares: one mean, one set of robust rules, one set of server optimizers, found here by hand.

What clients send comes from real training; CD2-pFed's send less in each of the two rounds than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.app import registry
from headwise.app.prepare import prepare
from headwise.cli.commands.list import method_facts
from headwise.contract.averaging import Averaged, Averaging, Shared
from headwise.contract.method import Reply, record_types
from headwise.engine.server_bench import ServerBench
from headwise.errors import ConfigError
from headwise.methods.cd2_pfed import CD2PFed
from headwise.methods.fedafk import FedAFK
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedbn import FedBN
from headwise.methods.fedcp import FedCP
from headwise.methods.fedper import FedPer
from headwise.methods.fml import FML
from headwise.methods.gpfl import GPFL
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.params import Params
from headwise.settings.names import list_names
from headwise.settings.options import Robust
from headwise.testing.claims import variants
from headwise.testing.toy import toy_plan
from headwise.testing.watching import record_messages, up_of

METHODS = (
    FedAFK(),
    FedAFK(global_head=True),
    FedBN(),
    FedCP(),
    GPFL(),
    CD2PFed(growth=1.0),
    FML(),
    FedPer(),
    LGFedAvg(),
)
OWN_WAY = {
    "apple", "ccvr", "cfl", "clusterfl", "fd", "fedadmm", "fedamp", "fedap", "fedas", "fedcac", "fedcross", "feddbe",
    "feddyn", "fedfomo", "fedftha", "fedgc", "fedgen", "fedgh", "fedgmh", "fedkd", "fedl2g", "fedmeta", "fedmtl",
    "fednova", "fedpac", "fedproto", "fedtgp", "floco", "flute", "pfedfda", "pfedhn", "pfedla", "pfedsim", "q-fedavg",
    "scaffold", "standalone",
}  # fmt: skip
MEAN = Robust()
Round = list[Reply[Any]]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def rounds(method: Any) -> list[Round]:
    """What the clients of a small federation send in its two rounds."""
    trainings = record_messages(method).trainings
    return [[Reply(v.job.client, up_of(v), v.answer.n) for v in trainings if v.job.t == t] for t in (1, 2)]


def bench(method: Any, robust: Robust = MEAN) -> ServerBench:
    return ServerBench(toy_plan(method).with_settings(robust=robust), 1)


def stacked(replies: Round, name: str) -> Tensor:
    return torch.stack([r.up.w[name] for r in replies]).double()


def means(method: Any, replies: Round) -> dict[str, Tensor]:
    """FML's paper prints the mean over clients, all others weigh clients by their samples."""
    n = torch.tensor([1.0 if isinstance(method, FML) else r.n for r in replies], dtype=torch.float64)
    return {k: torch.tensordot(n / n.sum(), stacked(replies, k), 1) for k in replies[0].up.w}


def close(found: Params, expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for k, t in found.items():
        torch.testing.assert_close(t.double(), expected[k], rtol=1e-4, atol=1e-5)


def after(method: Any, said: Sequence[Round], robust: Robust = MEAN) -> list[Averaged]:
    """The server's states from before the first round on."""
    central = bench(method, robust)
    states = [method.server_init(central)]
    for replies in said:
        states.append(method.aggregate(states[-1], replies, central))
    return states


@each_method
def test_mean(method: Any) -> None:
    said = rounds(method)
    assert len({r.n for r in said[0]}) > 1, "weights that are all the same would tell nothing"
    for state, replies in zip(after(method, said)[1:], said, strict=True):
        close(state.w, means(method, replies))


@each_method
def test_median(method: Any) -> None:
    said = rounds(method)
    for state, replies in zip(after(method, said, Robust("median"))[1:], said, strict=True):
        close(state.w, {k: stacked(replies, k).quantile(0.5, dim=0) for k in replies[0].up.w})


@each_method
def test_clipped_mean_of_changes_that_are_small_is_the_mean(method: Any) -> None:
    """And where none may change at all, what was sent stays."""
    said = rounds(method)
    close(after(method, said, Robust("clipped", clip=1e6))[-1].w, means(method, said[-1]))
    start, _, end = after(method, said, Robust("clipped", clip=1e-9))
    close(end.w, {k: _first(start.w[k].double(), t) for k, t in means(method, said[-1]).items()})


@each_method
@pytest.mark.parametrize("opt", ["none", "momentum", "adam", "yogi"])
def test_server_optimizers(method: Any, opt: Any) -> None:
    """Two rounds of Reddi et al., Algorithm 2, coordinate by coordinate; see `test_server_optimizers`."""
    said = rounds(method)
    optimized = replace(method, server_opt=opt, server_lr=0.3, server_momentum=0.8)
    start, *states = after(optimized, said)
    w = {k: t.double() for k, t in start.w.items()}
    m, v = ({k: torch.full_like(t, first) for k, t in w.items()} for first in (0.0, 1e-6))
    for state, replies in zip(states, said, strict=True):
        for k, average in means(method, replies).items():
            w[k], m[k], v[k] = (_first(t, average) for t in (w[k], m[k], v[k]))
            d = average - w[k]
            m[k] = 0.8 * m[k] + (d if opt == "momentum" else 0.2 * d)
            v[k] = 0.99 * v[k] + 0.01 * d**2 if opt == "adam" else v[k] - 0.01 * d**2 * (v[k] - d**2).sign()
            step = {"none": d, "momentum": m[k]}.get(opt, m[k] / (v[k].sqrt() + 1e-3))
            w[k] = w[k] + 0.3 * step
        close(state.w, w)


def _first(t: Tensor, like: Tensor) -> Tensor:
    """The entries that are shared of what was once shared whole."""
    return t[tuple(slice(0, n) for n in like.shape)]


def test_what_cd2_pfed_shares_shrinks_in_both_rounds() -> None:
    """Or the tests above would not see it."""
    start, first, second = after(CD2PFed(growth=1.0), rounds(CD2PFed(growth=1.0)))
    assert start.w.numel() > first.w.numel() > second.w.numel() > 0


@pytest.mark.parametrize("name", list_names("method"))
def test_methods_that_average_take_robust_rules(name: str, tmp_path: Path) -> None:
    experiment = hw.Experiment(
        method=name, data="synthetic:60:sites=3", partition="natural", model="mlp:4", robust={"rule": "median"}
    )
    if name in OWN_WAY:
        with pytest.raises(ConfigError, match=f"robust.rule is 'median', but {name} averages in its own way"):
            prepare(experiment, tmp_path)
    else:
        assert prepare(experiment, tmp_path).plan.experiment.robust.rule == "median"


@pytest.mark.parametrize("name", list_names("method"))
def test_no_method_types_the_mean_again(name: str) -> None:
    """What gets and sends a shared model, and needs no more than a mean of it, is `Averaging`."""
    cls = registry.find("method", name)
    types = record_types(cls)
    if types.down is types.up is Shared and cls.sums in ("samples", "clients"):
        assert issubclass(cls, Averaging)


@pytest.mark.parametrize("name", list_names("method"))
def test_listing_knows_who_has_a_global_model(name: str) -> None:
    """It reads the file alone; here the method is asked, with each of its options."""
    found = [v.global_model(v.server_init(bench(v)), bench(v)) for v in variants(registry.find("method", name)())]
    said = method_facts(registry.read_card("method", name))["global model"]
    assert said == ("yes" if any(m is not None for m in found) else "no")


AVERAGING = [name for name in list_names("method") if issubclass(registry.find("method", name), Averaging)]
PLAIN = {"apfl", "ditto", "fedbn", "fedrep", "mr-mtl", "per-fedavg", "pfedme"}
"""whose Algorithm 1 prints 1/K sum_k w_k, where ours is weighted by samples unless asked"""


@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize("name", AVERAGING)
def test_clients_count_by_their_samples_or_all_the_same(name: str, weights: str) -> None:
    """Of 1, 2 and 6 samples, models that are 1, 2 and 4 times the first one: (1 + 4 + 24) / 9, or 7 / 3 of it."""
    method = registry.find("method", name)(weights=weights)
    central = bench(method)
    server = method.server_init(central)
    first = server.w.map(lambda t: t.double())
    replies = [Reply(c, Shared(server.w * s), n) for c, (s, n) in enumerate(((1, 1), (2, 2), (4, 6)))]
    factor = 29 / 9 if weights == "samples" else 7 / 3
    for k, t in method.aggregate(server, replies, central).w.items():
        torch.testing.assert_close(t.double(), first[k] * factor, rtol=0, atol=2e-6)
    assert method.needs() == weights


@pytest.mark.parametrize("name", AVERAGING)
def test_the_mean_is_weighted_unless_asked_and_the_papers_own_is_a_preset(name: str) -> None:
    cls = registry.find("method", name)
    assert cls().weights == cls.sums == ("clients" if name == "fml" else "samples")
    assert (name in PLAIN) == (cls.presets.get("paper", {}).get("weights") == "clients")


def test_a_method_that_sets_sums_is_told_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"Old.sums is 'clients', but .*: weights: Literal.* = 'clients' makes it"):
        type("Old", (FedAvg,), {"sums": "clients"})
