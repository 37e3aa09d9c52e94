"""SIGKILL at random times: every run is killed once, resumed, and compared bit for bit with the undisturbed one.

    python benchmarks/kills.py              # 200 runs, a quarter of an hour

A run of FedPer on digits has 40 rounds, each with five of ten clients. Its process is killed at a time drawn evenly from
the length of a whole run; those that were done before do not count. Compared are the server's state, every client's
state, and all that is written about rounds and clients but for seconds and memory.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import headwise as hw
from headwise.testing.killing import Kill, bits, forks, killed_and_resumed, seconds_of

ROUNDS = 40


def killed(count: int, room: Path) -> Iterator[Kill]:
    """So many runs that were killed and resumed."""
    settings = {"data": "digits", "clients": 10, "rounds": ROUNDS, "sampling": {"ratio": 0.5}}
    experiment = hw.Experiment(method="fedper", engine={"workers": 1}, **settings)
    hw.run(experiment, room / "whole")
    wanted, context, rng, number, found = bits(room / "whole"), forks(), random.Random(0), 0, 0
    length = seconds_of(experiment, room, context)
    while found < count:
        number += 1
        if kill := killed_and_resumed(experiment, room / str(number), wanted, rng.uniform(0, length), context):
            found += 1
            yield kill


def told(kills: list[Kill]) -> list[tuple[str, str]]:
    """What was found, as lines of a table."""
    quarters = [sum(q * ROUNDS // 4 < k.rounds <= (q + 1) * ROUNDS // 4 for k in kills) for q in range(4)]
    begun = sum(k.rounds <= 0 for k in kills)
    return [
        ("runs killed and resumed", f"{len(kills)}"),
        ("rounds done when killed", f"none: {begun}, then by quarters of the run: {', '.join(map(str, quarters))}"),
        ("equal to the undisturbed run, to the bit", f"{sum(k.same for k in kills)} of {len(kills)}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    with tempfile.TemporaryDirectory() as room:
        for what, found in told(list(killed(parser.parse_args().count, Path(room)))):
            print(f"{what}: {found}")


if __name__ == "__main__":
    main()
