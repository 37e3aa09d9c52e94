"""How long a run of one round takes from the command line, beside torch's own import.

python benchmarks/start.py [CHECKOUT ...]    # others to compare with, for instance a git worktree of an older commit
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from racing import race

HERE = Path(__file__).parent.parent
RUN = "-m headwise run --method fedavg --data digits --clients 20 --rounds 1 --out"
TURNS = 7


def python(words: list[str], checkout: Path = HERE) -> float:
    """Wall seconds of this Python program, which imports Headwise from the checkout."""
    begun = time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} in {checkout}: {done.stderr}")
    return time.perf_counter() - begun


def one_round(checkout: Path = HERE, *more: str) -> float:
    """Wall seconds of a new process that runs one round of digits."""
    with tempfile.TemporaryDirectory() as folder:
        return python([*RUN.split(), f"{folder}/run", *more], checkout)


def table(others: list[Path]) -> list[str]:
    """A Markdown table: nothing but torch, then one round with one worker, and with two."""
    turns = {
        "`import torch`": partial(python, ["-c", "import torch"]),
        "one round of digits": one_round,
        "one round of digits, two workers": partial(one_round, HERE, "--workers", "2"),
        **{f"one round of digits, {other}": partial(one_round, other) for other in others},
    }
    seconds = race(turns, TURNS, time.perf_counter)
    least = seconds["`import torch`"]
    lines = [f"Wall seconds of a new process, medians of {TURNS} turns.\n", "| | s | beside torch |", "|---|---:|---:|"]
    lines += [f"| {name} | {spent:.2f} | {spent - least:+.2f} |" for name, spent in seconds.items()]
    print("\n".join(lines), flush=True)
    return lines


if __name__ == "__main__":
    table([Path(name).resolve() for name in sys.argv[1:]])
