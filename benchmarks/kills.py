"""SIGKILL at random times: every run is killed once, resumed, and compared bit for bit with the undisturbed one.

    python benchmarks/kills.py              # 200 runs; writes docs/results/kills.md

A run of FedPer on digits has 30 rounds, each with five of ten clients. Its process is killed at a time drawn evenly
from the length of a whole run; those that were done before do not count. Compared are the server's state, every
client's state, and all that is written about rounds and clients but for seconds and memory.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import headwise as hw
from headwise.app.launch import run_or_resume
from headwise.runs.query import Run
from headwise.settings.experiment import Experiment

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from killed_runs import bits, forks  # beside the tests, which use it too

PAGE = Path(__file__).parent.parent / "docs" / "results" / "kills.md"
ROUNDS = 30


class Kill(NamedTuple):
    """What became of a run that was killed."""

    rounds: int
    """that were done when it was killed; -1: it had no manifest yet"""
    same: bool
    """whether it ended with the bits of the undisturbed run"""


def seconds_of(experiment: Experiment, folder: Path, context: ForkServerContext) -> float:
    """What a whole run takes in a process of its own."""
    begun = 0.0
    for name in ("first", "second"):  # the first one also waits for the fork server to import torch
        process = context.Process(target=run_or_resume, args=(experiment, folder / name))
        begun = time.monotonic()
        process.start()
        process.join()
    return time.monotonic() - begun


def kill_and_resume(
    experiment: Experiment, folder: Path, expected: dict[str, Any], delay: float, context: ForkServerContext
) -> Kill | None:
    """Begin a run, kill its process after so many seconds, go on with it; None if it was quicker than that."""
    process = context.Process(target=run_or_resume, args=(experiment, folder))
    process.start()
    time.sleep(delay)
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    rounds = len(Run(folder).rounds) if (folder / "manifest.json").exists() else -1
    run_or_resume(experiment, folder)
    return Kill(rounds, bits(folder) == expected)


def kill_runs(count: int, room: Path) -> Iterator[Kill]:
    """So many runs that were killed and resumed."""
    settings = {"data": "digits", "clients": 10, "rounds": ROUNDS, "sampling": {"ratio": 0.5}}
    experiment = hw.Experiment(method="fedper", engine={"workers": 1}, **settings)
    hw.run(experiment, room / "whole")
    expected = bits(room / "whole")
    context = forks()
    rng = random.Random(0)
    number = 0
    unequal = 0
    length = seconds_of(experiment, room, context)
    while unequal < count:
        number += 1
        if kill := kill_and_resume(experiment, room / str(number), expected, rng.uniform(0, length), context):
            unequal += 1
            yield kill


def page(kills: list[Kill]) -> str:
    quarters = [sum(q * ROUNDS // 4 < k.rounds <= (q + 1) * ROUNDS // 4 for k in kills) for q in range(4)]
    begun = sum(k.rounds <= 0 for k in kills)
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    return (
        f"# Killed at any time\n\nMade by `python benchmarks/kills.py`. {about}\n\n| what | found |\n|---|---|\n"
        f"| runs killed and resumed | {len(kills)} |\n"
        f"| killed before the end of the first round | {begun} |\n"
        f"| in the quarters of the run after that | {', '.join(map(str, quarters))} |\n"
        f"| equal to the undisturbed run, to the bit | {sum(k.same for k in kills)} of {len(kills)} |\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as room:
        text = page(list(kill_runs(count, Path(room))))
    print(text)
    if count == 200:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
