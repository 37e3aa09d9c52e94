"""Attacks against defences on digits: 20 clients, of which four are malicious; IID, 30 rounds.

    python benchmarks/robustness.py        # writes docs/results/robustness.md; some minutes on one core

The numbers are the accuracy of the honest clients on their own test samples after the last round, the mean of three
seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any, get_args, get_type_hints

import torch

import headwise as hw
from headwise.app.launch import data_folder
from headwise.app.prepare import prepare
from headwise.engine.driver import drive
from headwise.engine.events import Event, RoundEnded
from headwise.engine.executors.local import Serial
from headwise.engine.host import use_one_thread
from headwise.engine.plan import Plan
from headwise.records import Record, pack
from headwise.settings.options import Faults, Robust

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from attacks import ATTACKS, PROTOTYPES, Attack, Hostile, label_flip  # beside the tests, which use it too

PAGE = Path(__file__).parent.parent / "docs" / "results" / "robustness.md"
LIARS = frozenset({1, 6, 11, 16})
SEEDS = (0, 1, 2)
RULES = get_args(get_type_hints(Robust)["rule"])
MARGIN = 1.2
"""the largest norm that counts, over the largest one of a run without liars"""


def plan_of(method: str, seed: int) -> Plan:
    settings: dict[str, Any] = {"data": "digits", "partition": "iid", "clients": 20, "rounds": 30, "seed": seed}
    return prepare(hw.Experiment(method=method, evaluate={"every": 30}, **settings), data_folder(None)).plan


def honest_accuracy(plan: Plan, name: str, attacks: dict[str, Attack], moment: str = "pre") -> float:
    plan = label_flip(plan, LIARS) if name == "label flip" else plan
    executor: Any = Serial(plan)
    executor = Hostile(executor, LIARS, attacks[name], plan.experiment.seed) if name in attacks else executor
    last: list[RoundEnded] = []

    def see(event: Event) -> None:
        if isinstance(event, RoundEnded):
            last[:] = [event]

    drive(plan, executor, [see])
    scores = [line[moment]["test"] for line in last[0].clients if line["client"] not in LIARS and moment in line]
    return sum(s["accuracy"] * s["n"] for s in scores) / sum(s["n"] for s in scores)


def largest_norm(plan: Plan) -> float:
    """Of all that anybody sends in a run without liars."""
    norms: list[float] = []

    def listen(down: Record, up: Record, rng: torch.Generator) -> Record:
        tensors = [t for t in pack(up).tensors.values() if t.is_floating_point()]
        norms.append(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)
        return up

    drive(plan, Hostile(Serial(plan), range(len(plan.data)), listen))
    return max(norms)


def table(first: str, attacks: dict[str, Attack], rows: dict[str, list[Plan]], moment: str = "pre") -> str:
    columns = ("none", "label flip", *attacks)
    lines = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, plans in rows.items():
        means = [fmean(honest_accuracy(plan, attack, attacks, moment) for plan in plans) for attack in columns]
        lines.append(f"| {name} | {' | '.join(f'{100 * a:.1f}' for a in means)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def robust(plans: list[Plan], rule: Any) -> list[Plan]:
    return [plan.with_settings(robust=Robust(rule, hostile=len(LIARS) / len(plan.data))) for plan in plans]


def bound(plans: list[Plan]) -> list[Plan]:
    return [
        plan.with_settings(faults=Faults(on_failure="skip", max_norm=MARGIN * largest_norm(plan), min_replies=0))
        for plan in plans
    ]


def main() -> None:
    about = (__doc__ or "").split("\n\n")
    with use_one_thread():
        plans = {name: [plan_of(name, seed) for seed in SEEDS] for name in ("fedavg", "fedgh", "fedgmh")}
        models = table("FedAvg, rule", ATTACKS, {rule: robust(plans["fedavg"], rule) for rule in RULES})
        rows = {f"{name}, {what}": make(plans[name]) for name in ("fedgh", "fedgmh")
                for what, make in (("no defence", list), ("`max_norm`", bound))}  # fmt: skip
        means = {moment: table(moment, PROTOTYPES, rows, moment) for moment in ("pre", "post")}
    text = (
        f"# Attacks and defences\n\n{about[0]}\n{' '.join(about[2].split())} "
        f"Made by `python benchmarks/robustness.py`.\n\n## Models\n\n{models}\n## Class means\n\n"
        "Malicious clients send their class means under each other's labels, at their own length or ten times as long. "
        f"No robust rule applies; `faults.max_norm` is {MARGIN} times the largest norm of a run without malicious "
        "clients.\n\n" + "\n".join(means.values())
    )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
