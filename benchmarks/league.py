"""Every method on digits: 20 clients, Dir(0.1), 50 rounds, three seeds, each with a learning rate chosen by validation.

    python benchmarks/league.py            # writes docs/results/league.md; about a quarter of an hour on two cores
    python benchmarks/league.py fedkd      # replaces the rows of these methods, whose rules have changed

What is finished is not run again: delete runs/league to start over.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from headwise.app.launch import run_or_resume
from headwise.runs.query import Run
from headwise.settings.experiment import experiment_from
from headwise.settings.names import list_names

RATES = (0.03, 0.1, 0.3)
SEEDS = (0, 1, 2)
BASE = {
    "data": "digits", "partition": "dirichlet:0.1", "clients": 20, "rounds": 50, "split": "12:3:5",
    "evaluate": {"every": 5},
}  # fmt: skip
SERVERS = {
    "fedavg, FedAvgM": "fedavg:server_opt=momentum:server_lr=0.3",
    "fedavg, FedAdam": "fedavg:server_opt=adam:server_lr=0.01",
    "fedavg, FedYogi": "fedavg:server_opt=yogi:server_lr=0.01",
}
PAGE = Path(__file__).parent.parent / "docs" / "results" / "league.md"


def cell(method: str, lr: float, seed: int) -> Run:
    """One run; serial, so that two of them share the machine."""
    folder = Path("runs/league") / f"{method.replace(':', '-')}-lr{lr}-s{seed}"
    return run_or_resume(experiment_from({**BASE, "method": method, "seed": seed, "train": {"lr": lr}}), folder)


def validated(run: Run) -> float:
    """The last validation accuracy, at the moment that suits the method."""
    return max(run.rounds[-1][moment]["val_accuracy"] for moment in ("pre", "stale"))


def season(item: tuple[str, str]) -> dict[str, Any]:
    """A method's line: its learning rate by validation accuracy with the first seed, then all seeds."""
    name, method = item
    tried = {lr: cell(method, lr, SEEDS[0]) for lr in RATES}
    lr = max(RATES, key=lambda r: validated(tried[r]))
    runs = [tried[lr], *(cell(method, lr, seed) for seed in SEEDS[1:])]
    sums = [r.summary() for r in runs]
    served = sum(len(row["clients"]) for row in runs[0].rounds)
    return {
        "name": name,
        "lr": lr,
        "floor": runs[0].floor,
        **{m: [s["accuracy"][m]["last"] for s in sums] for m in ("pre", "stale")},
        "worst": fmean(s["accuracy"]["stale"]["worst_decile"] for s in sums),
        "down": sums[0]["bytes_down"] / served / 1024,
        "up": sums[0]["bytes_up"] / served / 1024,
        "seconds": fmean(s["seconds"] / s["rounds"] for s in sums),
    }


def line(row: dict[str, Any]) -> str:
    """A line of the table."""
    own = [f"{fmean(row[m]) * 100:.1f} ± {stdev(row[m]) * 100:.1f}" for m in ("pre", "stale")]
    rest = [
        f"{row['worst'] * 100:.1f}",
        f"{row['lr']:g}",
        f"{row['down']:.2f}",
        f"{row['up']:.2f}",
        f"{row['seconds']:.2f}",
    ]
    return f"| {' | '.join([row['name'], *own, *rest])} |"


def kept(names: Collection[str]) -> list[str]:
    """The page's lines of all other methods."""
    lines = [row for row in PAGE.read_text().splitlines() if row.startswith("| ") and "%" not in row]
    return [row for row in lines if row.split(" | ")[0][2:] not in names]


def best(row: str) -> float:
    """The better accuracy in a line, pre or stale."""
    return max(float(cell.split()[0]) for cell in row.split(" | ")[1:3])


def main(names: Sequence[str]) -> None:
    """Play the season of these methods or of all, two at a time, and write the table, the best first."""
    known: dict[str, str] = {**{n: n for n in list_names("method")}, **SERVERS}
    items = [(n, known[n]) for n in names or known]
    with ProcessPoolExecutor(2) as pool:
        rows = []
        for row in pool.map(season, items):
            rows.append(row)
            print(line(row), file=sys.stderr, flush=True)
    lines = sorted([*map(line, rows), *(kept(names) if names else [])], key=best, reverse=True)
    head = ["method", "pre %", "stale %", "worst decile %", "lr", "KB down", "KB up", "s / round"]
    table = "\n".join([f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1), *lines])
    later = (
        f"\nRows run again after their rules changed, seconds on a busier machine: {', '.join(names)}." if names else ""
    )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(f"""# Every method on digits

Made by `python benchmarks/league.py`: 20 clients, Dir(0.1), batch 10, one epoch, 50 rounds, mean ± standard deviation
over {len(SEEDS)} seeds on one partition; 60 % training, 15 % validation, 25 % test samples. The rate is the one of
{", ".join(map(str, RATES))} with the best last validation accuracy, pre or stale, for the first seed; all else are the
methods' defaults.
The majority-class floor is **{rows[0]["floor"] * 100:.1f} %**. *pre* is what a client would use after a fresh download,
*stale* what it kept of its own last training; traffic is per participating client and round; time is on one core of a
shared two-core machine.{later}

{table}
""")


if __name__ == "__main__":
    main(sys.argv[1:])
