"""Does `headwise tune` find the learning rate that an exhaustive grid finds, and at what cost?

    python benchmarks/tuning.py                      # digits and heart disease, five methods
    python benchmarks/tuning.py cifar10 fedavg fedah # a federation and methods

The grid has ten rates from 0.001 to 1, each a factor of 2.15 apart, trained for all rounds. Both choose on validation
samples. Printed: the two rates (of rates with equal scores, the nearest), their scores, and the rounds that the search
trained as a share of the grid's.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headwise as hw
from headwise.app.tune import tune, validation_score, with_validation

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "clients": 10, "partition": "dirichlet:0.3", "rounds": 24},
    "heart": {"data": "heart-disease", "partition": "natural", "rounds": 24},
    "cifar10": {"data": "cifar10", "clients": 10, "partition": "dirichlet:0.1", "fraction": 0.05, "rounds": 16},
}
METHODS = ("fedavg", "fedah", "fedrep", "fedgmh", "fedcp")
RATES = [float(f"{r:.3g}") for r in np.logspace(-3, 0, 10)]
TRIALS = 10


def main(federation: str, method: str, folder: Path) -> list[str]:
    base = hw.Experiment(**FEDERATIONS[federation], method=method, engine={"workers": 1}, evaluate={"start": False})
    result = tune(base, trials=TRIALS, space=["train.lr=log:1e-3..1"], out=folder / "tune")
    base = with_validation(base)
    scores: dict[float, float] = {}
    for rate in RATES:
        train = dataclasses.replace(base.train, lr=rate)
        run = hw.run(dataclasses.replace(base, train=train), folder / f"grid-{rate:g}")
        score = validation_score(run.rounds[-1], run.metric)
        if score is not None:
            scores[rate] = score
    mine = result.best["settings"]["train.lr"]
    top = max(result.metric.gain(score, 0.0) for score in scores.values())
    equal = [rate for rate, score in scores.items() if result.metric.gain(score, 0.0) == top]
    best = min(equal, key=lambda rate: abs(np.log(rate / mine)))
    cost = sum(t["rounds"] for t in result.trials) / (len(RATES) * base.rounds)
    form = result.metric.form
    factor = max(mine / best, best / mine)
    cells = [f"{mine:.3g}", form(result.best["score"]), f"{best:.3g}", form(scores[best]), f"{factor:.1f}"]
    return [federation, method, *cells, f"{cost:.0%}"]


def print_table(rows: Sequence[Sequence[str]]) -> None:
    head = ["federation", "method", "rate by tune", "score", "rate by grid", "score", "factor", "rounds, of the grid's"]
    for row in [head, ["---"] * len(head), *rows]:
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="federations and methods")
    names = parser.parse_args().names
    federations = [n for n in names if n in FEDERATIONS] or ["digits", "heart"]
    methods = [n for n in names if n not in FEDERATIONS] or METHODS
    rows: list[list[str]] = []
    for federation in federations:
        for method in methods:
            with tempfile.TemporaryDirectory() as home:
                rows.append(main(federation, method, Path(home)))
                print(" ".join(rows[-1]), flush=True)
    print_table(rows)
