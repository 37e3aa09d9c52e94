"""Your own arrays and your own network: one call trains, and each client's model comes out.

python examples/own_arrays.py
"""

from __future__ import annotations

import numpy as np
from torch import nn

import headwise as hw


def clinic(n: int, shift: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Patients with five measurements; each clinic's devices are shifted, so what means "ill" differs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    ill = (x[:, 0] + x[:, 1] > 0).astype(int)
    return x + shift, ill


def main() -> None:
    clients = {"va": clinic(120, 0.0, 1), "rome": clinic(60, 2.0, 2), "basel": clinic(40, -2.0, 3)}
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))  # the last Linear layer is the head
    run = hw.fit(clients, method="fedah", model=net, rounds=10, lr=0.1, workers=1)

    print(f"right: {run.accuracy():.1%} of all test samples, {run.floor:.1%} by guessing the most frequent class")
    for name, score in zip(run.names, run.last_scores()["pre"].values(), strict=True):
        print(f"  {name:6} {score:.1%}")
    rome = run.model("rome")
    print(f"rome says of three new patients: {rome.predict(clinic(3, 2.0, 4)[0]).tolist()}")


if __name__ == "__main__":
    main()
