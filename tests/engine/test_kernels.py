"""Which kernel trains what, that a run records it, and the one switch for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwise as hw
from headwise.cli import main
from headwise.engine.kernels.native.chain import native
from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.kernels.training import Feed, Rates, choose

RATES = Rates(0.1, 0.0, 0.0)


def fastest() -> str:
    """The kernel of chains on this machine."""
    return "native" if native().library else "plain"


def dense(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), *more, nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def feed() -> Feed:
    """Two steps on six samples."""
    rng = torch.Generator().manual_seed(0)
    x, y, order = torch.randn(6, 1, 4, 4, generator=rng), torch.arange(6) % 3, torch.arange(6).view(2, 3)
    return Feed(lambda: iter([(x[i], y[i]) for i in order]), lambda: (x, y, order))


@pytest.mark.parametrize(
    ("build", "settings", "name"),
    [
        (dense, {}, "native"),
        (convolutional, {}, "native"),
        (lambda: dense(nn.Dropout()), {}, "plain"),
        (dense, {"fast": False}, "plain"),
        (convolutional, {"fast": False}, "plain"),
        (dense, {"rates": RATES._replace(clip=1.0)}, "native"),
        (convolutional, {"project": lambda: None}, "plain"),
    ],
)
@pytest.mark.parametrize("limit", ["", "off"])
def test_the_fastest_kernel_that_fits_is_chosen(
    build: Callable[[], nn.Sequential],
    settings: dict[str, Any],
    name: str,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LIMIT, limit)
    settings, name = dict(settings), name if name == "plain" else fastest()
    torch.manual_seed(0)
    net = build().eval()
    before = [p.detach().clone() for p in net.parameters()]
    kernel = choose(net, [net], None, settings.pop("rates", RATES), models=[net], **settings)
    assert (kernel.name, kernel.train(feed())) == (name, 2)
    assert not any(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_loss_of_its_own_takes_autograd() -> None:
    net = dense()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(net(x), y)

    assert choose(net, [net], loss, RATES, models=[net]).name == "plain"


@pytest.mark.parametrize("fast", [True, False])
def test_what_has_no_weights_takes_no_steps(fast: bool) -> None:
    net = nn.Sequential(nn.Flatten())
    assert choose(net, [net], None, RATES, models=[net], fast=fast).train(feed()) == 0


def experiment(**engine: Any) -> hw.Experiment:
    return hw.Experiment(method="fedprox", data="synthetic:80:4:8", model="mlp:8", clients=4, rounds=1, engine=engine)


def kernels(run: hw.Run) -> list[set[str]]:
    """Of each round."""
    return [
        {name for section in row["seconds"]["workers"] for part, _, name in [section.partition(".")] if name}
        for row in run.rounds
    ]


@pytest.mark.parametrize("workers", [1, 2, "threads:2"])
@pytest.mark.parametrize(("method", "ran"), [("fedavg", "native"), ("fedprox", "native"), ("moon", "plain")])
def test_every_executor_says_which_kernels_ran(workers: Any, method: str, ran: str, tmp_path: Path) -> None:
    asked = hw.Experiment(**{**experiment(workers=workers).to_plain(), "method": method})
    assert kernels(hw.run(asked, tmp_path / "run")) == [{ran if ran == "plain" else fastest()}]


def test_plain_kernels_only_where_they_are_asked_for(tmp_path: Path) -> None:
    asked = hw.Experiment(**{**experiment(kernels="plain").to_plain(), "method": "fedrep"})
    assert kernels(hw.run(asked, tmp_path / "run")) == [{"plain"}]


def test_the_profile_names_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--data", "synthetic:80:4:8", "--clients", "4", "--rounds", "1", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--method", "fedavg", "--set", "model=mlp:8", "--quiet", "--profile", *asked])
    said = capsys.readouterr().out
    assert f"forward and backward, {fastest()}" in said
    native_said = re.search(r"native kernels: [\d.]+ GFLOP/s per core, \d+% of this machine's sgemm \([\d.]+\)\.", said)
    assert bool(native_said) == (fastest() == "native")
