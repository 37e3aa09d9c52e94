"""Measures that several methods use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

BANDWIDTHS = (10, 15, 20, 50)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples with a sum of Gaussian kernels; Gretton et al., JMLR 2012."""
    n, z = len(x), torch.cat((x, y))
    d = z.square().sum(1)[:, None] + z.square().sum(1) - 2 * z @ z.T
    k = torch.stack([(-d / (2 * s)).exp() for s in BANDWIDTHS]).sum(0)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of the distributions that these scores stand for, the mean over the batch."""
    return kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="batchmean", log_target=True)
