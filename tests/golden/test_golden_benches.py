"""What a bench gives beside training: parts of the data, drawn modules, the server's own architecture."""

from __future__ import annotations

from dataclasses import replace

import torch
from tiny import bench, plan_of
from torch import nn

from headwise.models.split import SplitModel

MANY = [(torch.arange(40.0).view(20, 2), torch.arange(20) % 3), (torch.ones(3, 2), torch.tensor([0, 1, 1]))]


def test_a_window_is_contiguous_and_moves() -> None:
    plan = plan_of(clients=MANY)
    firsts = set()
    for t in range(1, 30):
        part = bench(plan, t=t).window(0.8)
        (x, y), *rest = part.batches(1)
        assert not rest
        at = sorted(int(v) // 2 for v in x[:, 0])
        assert at == list(range(at[0], at[0] + 16))
        assert part.n == len(y) == 16
        assert part.class_counts.sum() == 16
        firsts.add(at[0])
    assert firsts == set(range(5))


def test_held_out_samples_are_the_same_in_every_round_and_never_trained_on() -> None:
    plan = plan_of(clients=MANY)
    seen = []
    for t in (1, 2):
        rest, (x, y) = bench(plan, t=t).hold_out(0.2)
        (trained, _), *_ = rest.batches(1)
        assert len(y) == 4
        assert rest.n == 16
        assert not {tuple(r) for r in x.tolist()} & {tuple(r) for r in trained.tolist()}
        seen.append(x)
    assert torch.equal(*seen)


def test_too_few_samples_to_hold_any_out_validate_on_all() -> None:
    rest, (x, y) = bench(plan_of(clients=MANY), client=1).hold_out(0.2)
    assert rest.n == len(y) == len(x) == 3


def test_what_is_drawn_depends_on_its_key_alone() -> None:
    plan = plan_of(clients=MANY)
    here, there = bench(plan, client=0, t=1), bench(plan, client=1, t=9)
    a, b, c = (m.draw(lambda: nn.Linear(3, 2), k) for m, k in ((here, "x"), (there, "x"), (here, "y")))
    assert torch.equal(a.weight, b.weight)
    assert not torch.equal(a.weight, c.weight)
    heads = [m.random_head("h")["head.weight"] for m in (here, there)]
    assert torch.equal(*heads)
    assert not torch.equal(heads[0], here.init().state("head")["head.weight"])
    assert not torch.equal(heads[0], here.random_head("other")["head.weight"])


def test_the_servers_architecture_is_common() -> None:
    small = SplitModel(nn.Sequential(nn.Linear(2, 1), nn.ReLU()), nn.Linear(1, 3)).eval()
    plan = replace(plan_of(clients=MANY), server_model=small)
    local = bench(plan)
    assert local.init(common=True).width == 1
    assert local.init().width == 2
    w = small.params()
    assert torch.equal(local.model(w, common=True).params()["body.0.weight"], w["body.0.weight"])
