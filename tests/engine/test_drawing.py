"""Initial weights: the right distributions, and the same bits under every instruction set."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from headwise.engine.drawing import draw_alike

PROBE = """
import hashlib
from headwise.engine.drawing import draw_alike
import torch
from torch import nn
digest = hashlib.sha256()
for make in (lambda: nn.Conv2d(3, 7, 5), lambda: nn.Linear(100, 30), lambda: nn.Embedding(50, 8), lambda: nn.LSTM(4, 5),
             lambda: nn.init.kaiming_normal_(torch.empty(64, 32))):
    with draw_alike(3):
        made = make()
    for t in made.parameters() if isinstance(made, nn.Module) else [made]:
        digest.update(t.detach().numpy().tobytes())
print(torch.backends.cpu.get_cpu_capability(), digest.hexdigest())
"""


@pytest.mark.slow
def test_every_instruction_set_of_torch_draws_the_same_weights() -> None:
    def drawn(capability: str) -> list[str]:
        env = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        return subprocess.run(
            [sys.executable, "-c", PROBE], env=env, check=True, capture_output=True, text=True
        ).stdout.split()

    own = torch.backends.cpu.get_cpu_capability().lower()
    (name, scalar), (_, vector) = drawn("default"), drawn(own)
    assert name == "DEFAULT"
    assert scalar == vector


def test_uniform_draws_are_rounded_once() -> None:
    low, high = np.float32(-0.1), np.float32(0.3)
    with draw_alike(5):
        drawn = torch.empty(2000).uniform_(float(low), float(high))
    torch.manual_seed(5)
    width = Fraction(float(high - low))
    exact = [Fraction(float(u)) * width + Fraction(float(low)) for u in torch.rand(2000)]
    for got, want in zip(drawn.numpy(), exact, strict=True):
        error = abs(Fraction(float(got)) - want)
        assert all(
            error <= abs(Fraction(float(np.nextafter(got, to))) - want) for to in (np.float32(-9), np.float32(9))
        )


def test_normal_draws_are_normal() -> None:
    with draw_alike(7):
        drawn = torch.empty(20_000, dtype=torch.float64).normal_(1.0, 2.0)
    assert stats.kstest(drawn.numpy(), "norm", args=(1.0, 2.0)).pvalue > 0.01
    torch.manual_seed(7)
    u, v = torch.rand((2, 20_000), dtype=torch.float64)
    by_libm = 1 + 2 * torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)
    assert torch.allclose(drawn, by_libm, rtol=0, atol=1e-13)


def test_the_generator_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    with draw_alike(9):
        nn.Linear(4, 2)
    assert torch.equal(torch.rand(3), want)


@pytest.mark.slow
def test_drawing_does_not_import_the_compiler() -> None:
    code = "import sys; from headwise.engine.drawing import draw_alike; from torch import nn\n"
    code += "with draw_alike(1): nn.Linear(2, 3)\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch._dynamo' not in sys.modules"], check=True)
