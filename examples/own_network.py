"""Your own network and a task other than classification: every farm predicts its harvest from weather and soil.

python examples/own_network.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import headwise as hw


class Harvest(nn.Module):
    """Two branches that meet in one vector of features; the layer `out` predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.weather, self.soil = nn.Linear(4, 8), nn.Linear(2, 8)
        self.out = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.weather(x[:, :4]).tanh(), self.soil(x[:, 4:]).tanh()], dim=1))


def farm(n: int, yields: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tons per field; the same weather gives each farm another harvest."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    return x, yields * (5 + x[:, 0] - x[:, 1] * x[:, 4]) + rng.normal(0, 0.2, n)


def main() -> None:
    farms = {f"farm {k}": farm(60, 1 + 0.2 * k, k) for k in range(5)}
    net = f"{__file__}:Harvest"  # by its file, so that workers, resume and run.model find it
    for method in ("standalone", "fedavg", "fedrep"):
        run = hw.fit(farms, method=method, model=net, task="regression", rounds=10, lr=0.1, workers=1)
        print(f"{method:10} error (RMSE) {run.score():.2f} tons, {run.floor:.2f} if each farm guesses its own mean")
    print("farm 4 expects", run.model("farm 4").predict(farm(2, 1.8, 9)[0]).round(1).tolist())


if __name__ == "__main__":
    main()
