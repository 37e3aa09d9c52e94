"""The order of samples in batches, whatever size is asked for."""

from __future__ import annotations

import pytest
import torch
from bench_of_tests import even_federation, prepare
from torch import Tensor

from headwise.engine.client.client_bench import WIDEST, ClientBench
from headwise.methods.fedavg import FedAvg
from headwise.params import Params
from headwise.settings.options import Train

N = 9


def bench(drop_last: bool = False) -> ClientBench:
    plan = prepare(FedAvg(), even_federation(), train=Train(drop_last=drop_last))
    return ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0)


def as_it_was(size: int, epochs: int, drop_last: bool) -> Tensor:
    """Every order is padded to a multiple of the batch, whatever its size."""
    rng, rows = bench().rng, list[Tensor]()
    for _ in range(epochs):
        order = torch.cat([torch.randperm(N, generator=rng), torch.full((-N % size,), -1)]).view(-1, size)
        rows.append(order[:-1] if drop_last and N % size else order)
    return torch.cat(rows)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 9, 10, 100, WIDEST])
def test_batches_of_usual_sizes_are_as_they_were(size: int, drop_last: bool) -> None:
    assert torch.equal(bench(drop_last)._draw_batches(2, size), as_it_was(size, 2, drop_last))


@pytest.mark.parametrize("size", [WIDEST + 1, 10**9])
def test_a_batch_beyond_the_data_is_the_data(size: int) -> None:
    """It was a table of 8 GB when padded to the requested size."""
    found = bench()._draw_batches(2, size)
    assert torch.equal(found, as_it_was(WIDEST, 2, drop_last=False))
    assert bench(drop_last=True)._draw_batches(2, size).shape == (0, WIDEST), "less than one batch is never trained on"


def test_a_batch_beyond_data_as_large_as_a_row_is_still_not_full() -> None:
    made = bench(drop_last=True)
    made.n = WIDEST
    assert len(made._draw_batches(1, WIDEST)) == 1
    assert len(made._draw_batches(1, WIDEST + 1)) == 0
