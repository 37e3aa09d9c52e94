"""Does `headwise choose` name the best method? On federations of the league, whose answer is known.

    python benchmarks/choosing.py docs/results/league.csv --budget 3m --out runs/choosing [FEDERATION]...

Each federation is judged with a portfolio that was learned without it, and on draws that the league does not have.
Printed, a row each: the recommended method, the league's best, whether the two can be told apart, the regret in points
(the league's mean client of the best minus that of the recommended one), and the cost in runs. What is finished is not
run again; --budget must then be the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headwise.app import choose as choosing
from headwise.app.launch import data_folder
from headwise.league.cells import find_federations, read_csv
from headwise.league.standings import Group, Standings
from league import order_portfolio, rank_defaults

FIRST_DRAW = 100
HEAD = [
    "federation",
    "recommended",
    "best in the league",
    "told apart",
    "regret, points",
    "runs",
    "methods tried",
    "draws",
]
HEAD += ["verdict"]


def judge(group: Group, others: list[Group], budget: str, out: Path) -> list[str]:
    folder = out / group.name
    if not (folder / "choice.json").exists():
        base = find_federations("v1", [group.name])[0].experiment("fedavg", FIRST_DRAW)
        methods = [m for m in order_portfolio(Standings(tuple(others))) if m not in group.failed]  # refused there
        choosing.read_portfolio = lambda: methods  # named ones would get more of the budget
        choosing.choose(base, budget=budget, out=folder, data_dir=data_folder(None))
    answer = json.loads((folder / "choice.json").read_text())
    journal = json.loads((folder / "choose.json").read_text())
    method = answer["pick"].removeprefix("tuned ")
    runs = sum(1 for _ in folder.glob("**/manifest.json"))
    tried = len({name.rpartition("/")[2].rpartition("-d")[0] for name in journal["seconds"] if "/" in name})
    verdict = next(part for part in answer["words"][0].split(": ") if not part.startswith("After "))
    near = "no" if method in group.near else "yes"
    return [
        *(group.name, answer["pick"], group.cells.ranking[0], near, f"{100 * group.regret(method):.1f}"),
        *(str(runs), str(tried), str(answer["draws"]), verdict),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("league", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--out", type=Path, default=Path("runs/choosing"))
    given = parser.parse_intermixed_args()
    groups = rank_defaults(read_csv(given.league)).groups
    for row in (HEAD, ["---"] * len(HEAD)):
        print(f"| {' | '.join(row)} |", flush=True)
    for group in groups:
        if not given.names or group.name in given.names:
            others = [other for other in groups if other is not group]
            print(f"| {' | '.join(judge(group, others, given.budget, given.out))} |", flush=True)


if __name__ == "__main__":
    main()
