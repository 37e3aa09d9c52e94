"""Attacks against defences on digits: 20 clients, of whom four lie; FedAvg, IID, 30 rounds.

    python benchmarks/robustness.py        # writes docs/results/robustness.md; some minutes on one core

The numbers are the accuracy of the honest clients on their own test samples after the last round, the mean of three
seeds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args, get_type_hints

import headwise as hw
from headwise.engine.driver import drive
from headwise.engine.events import Event, RoundEnded
from headwise.engine.executors.serial import Serial
from headwise.engine.options import Robust
from headwise.engine.plan import Plan
from headwise.engine.process import one_thread
from headwise.launch import data_folder
from headwise.plans import make_plan
from headwise.testing.attacks import ATTACKS, Hostile, label_flip

PAGE = Path(__file__).parent.parent / "docs" / "results" / "robustness.md"
LIARS = frozenset({1, 6, 11, 16})
SEEDS = (0, 1, 2)
RULES = get_args(get_type_hints(Robust)["rule"])
COLUMNS = ("none", "label flip", *ATTACKS)


def plan_of(seed: int) -> Plan:
    settings: dict[str, Any] = {"data": "digits", "partition": "iid", "clients": 20, "rounds": 30, "seed": seed}
    return make_plan(hw.Experiment(method="fedavg", evaluate={"every": 30}, **settings), data_folder(None)).plan


def honest_accuracy(plan: Plan, rule: Any, attack: str) -> float:
    plan = replace(plan, robust=Robust(rule, hostile=len(LIARS) / len(plan.data)))
    plan = label_flip(plan, LIARS) if attack == "label flip" else plan
    executor: Any = Serial(plan)
    executor = Hostile(executor, LIARS, ATTACKS[attack], plan.seed) if attack in ATTACKS else executor
    last: list[RoundEnded] = []

    def see(event: Event) -> None:
        if isinstance(event, RoundEnded):
            last[:] = [event]

    drive(plan, executor, [see])
    scores = [line["pre"]["test"] for line in last[0].clients if line["client"] not in LIARS]
    return sum(s["accuracy"] * s["n"] for s in scores) / sum(s["n"] for s in scores)


def main() -> None:
    lines = [f"| rule | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    with one_thread():
        plans = [plan_of(seed) for seed in SEEDS]
        for rule in RULES:
            found = [fmean(honest_accuracy(plan, rule, attack) for plan in plans) for attack in COLUMNS]
            lines.append(f"| {rule} | {' | '.join(f'{100 * a:.1f}' for a in found)} |")
            print(lines[-1], flush=True)
    said = (__doc__ or "").split("\n\n")
    text = (
        f"# Attacks and defences\n\n{said[0]}\n{' '.join(said[2].split())} Made by `python benchmarks/robustness.py`."
    )
    PAGE.write_text(text + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
