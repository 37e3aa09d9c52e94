"""FedCAC by hand (arXiv 2309.11103; the equations are numbered in the file of the method).

A tensor's critical parameters are the floor(tau n) largest |(theta - theta before) theta|. For masks of truth values
O_ij = 1 - (entries in which they differ) / (2 |M_i|); client i collaborates with those of
O_ij >= mean + t / beta (max - mean) over all pairs. Critical entries are the mean over these, the others that over all.
"""

from __future__ import annotations

import pytest
import torch
from byhand import START, Weights, close, descend, drawn
from tiny import bench, floats, plan_of

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedcac import Down, FedCAC, Own, Server, Up
from headwise.params import Params

LR, EPOCHS, SIZES = 0.3, 2, [5, 4, 6]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]
MASKS = [  # in the order of the 4 + 2 + 6 + 3 parameters; 7 each, as tau = 0.5 gives them
    [1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0],
    [1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0],  # differs from the first in 2 entries
    [0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0],  # in 6 from the first, in 6 from the second
]


def mask_of(bits: list[int]) -> Params:
    parts = torch.tensor(bits).bool().split([t.numel() for t in START.values()])
    return Params({k: part.view(t.shape) for (k, t), part in zip(START.items(), parts, strict=True)})


def average(*models: Weights) -> Weights:
    return {k: sum(w[k] for w in models) / len(models) for k in START}


def merged(mask: Params, custom: Weights, world: Weights) -> Weights:
    return {k: torch.where(mask[k], custom[k], world[k]) for k in START}


@pytest.mark.parametrize("tau", [0.0, 0.5, 0.7, 1.0])
def test_client_half(tau: float) -> None:
    """Eq. (4), training, Eq. (1): 2, 1, 3 and 1 critical entries of 4, 2, 6 and 3 at one half."""
    method, world, custom, before = FedCAC(tau=tau), drawn(1), drawn(2), mask_of(MASKS[0])
    local = bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)
    down = Down(floats(world), floats(custom))
    update = method.local_update(Own(before), down, local)
    start = merged(before, custom, world)
    w = descend(start, *CLIENTS[0], LR, EPOCHS)
    close(dict(update.up.w), w)
    for k, t in w.items():
        scores = ((t - start[k]) * t).abs().flatten().tolist()
        largest = sorted(range(len(scores)), key=lambda i, s=scores: -s[i])[: int(tau * len(scores))]
        assert update.up.mask[k].flatten().nonzero().flatten().tolist() == sorted(largest)
        assert update.me.mask is not None and torch.equal(update.me.mask[k], update.up.mask[k])
    close(method.personalize(Own(before), down, local).state_dict(), start)
    close(method.personalize(Own(None), down, local).state_dict(), world)


@pytest.mark.parametrize(
    ("t", "beta", "collaborators"),
    [
        (1, 100, [(0, 1), (0, 1), (2,)]),  # overlaps 6/7, 4/7, 4/7: mean 2/3, largest 6/7; 2 is below the mean
        (50, 50, [(0, 1), (0, 1), (2,)]),  # the largest itself
        (51, 50, [(0,), (1,), (2,)]),  # beyond the largest
    ],
)
def test_server_half(t: int, beta: int, collaborators: list[tuple[int, ...]]) -> None:
    """Means without weights, whatever n is."""
    method, models = FedCAC(beta=beta), [drawn(c) for c in range(3)]
    central = ServerBench(plan_of(method, CLIENTS), t)
    replies = [Reply(c, Up(floats(w), mask_of(MASKS[c])), SIZES[c]) for c, w in enumerate(models)]
    server = method.aggregate(method.server_init(central), replies, central)
    close(dict(server.w), average(*models))
    close(method.global_model(server, central).state_dict(), average(*models))
    for i, with_whom in enumerate(collaborators):
        down = method.broadcast(server, i, central)
        close(dict(down.w), average(*models))
        close(dict(down.custom), average(*(models[j] for j in with_whom)))


def test_only_some_take_part() -> None:
    """The mean over all is that over the round's clients; collaborators are also those of earlier rounds."""
    method, models = FedCAC(), [drawn(c) for c in range(3)]
    central = ServerBench(plan_of(method, CLIENTS), 1)
    ups = [Up(floats(w), mask_of(MASKS[0])) for w in models]
    server = method.aggregate(method.server_init(central), [Reply(0, ups[0], 5)], central)
    close(dict(method.broadcast(server, 0, central).custom), models[0])
    server = method.aggregate(server, [Reply(1, ups[1], 4)], central)
    close(dict(server.w), models[1])
    close(dict(method.broadcast(server, 0, central).custom), average(models[0], models[1]))
    close(dict(method.broadcast(server, 2, central).custom), models[1])  # has not trained yet
    assert isinstance(server, Server) and list(server.masks) == [0, 1]
