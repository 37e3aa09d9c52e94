"""A client that joins after training: what it gains from the others, and from its own few samples.

python examples/new_client.py
"""

from __future__ import annotations

import numpy as np

import headwise as hw


def shop(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Customers of four kinds; each shop sees another mixture of them."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(4, size=n, p=rng.dirichlet(np.full(4, 0.7)))
    centres = 0.8 * np.random.default_rng(0).normal(size=(4, 6))  # the same in every shop
    return centres[kinds] + rng.normal(size=(n, 6)), kinds


def main() -> None:
    clients = {f"shop {k}": shop(80, k) for k in range(1, 7)}
    run = hw.fit(clients, method="fedah", rounds=8, lr=0.1, workers=1)
    print(f"the six shops: {run.accuracy():.1%} right")

    x, y = shop(220, 99)
    few, later = (x[:20], y[:20]), (x[20:], y[20:])  # the new shop has twenty labelled customers
    for epochs in (0, 1, 5):
        model = run.adapt(*few, epochs=epochs)  # nothing is sent, and the run does not change
        right = np.mean([int(kind) == want for kind, want in zip(model.predict(later[0]), later[1], strict=True)])
        print(f"the new shop after {epochs} epoch(s) on 20 samples: {right:.1%} right of 200 later customers")
    print(f"it has {len(model.classes)} kinds of customers; model.save('new-shop') writes it to a folder")


if __name__ == "__main__":
    main()
