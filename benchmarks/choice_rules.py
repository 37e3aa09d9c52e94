"""By which rule should `headwise choose` recommend? Judged on the draws of the league that the rule has not seen.

    python benchmarks/choice_rules.py docs/results/league.csv

The yardsticks and the first methods of a portfolio that was learned from the other federations are compared on some
draws of a federation; each rule then names a method, which is judged on the remaining draws. All subsets of the draws
count. Printed, in points of the mean client: the regret (how far the named method is behind the best of those that took
part, on the draws that judge), how often it is more than half a point worse than local training, by how much over all
recommendations and at most, and the regret in each federation. With fewer draws that judge, the best of them is more
flattered: compare rows with the same number of draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

from headwise.league.cells import read_csv
from headwise.league.standings import Group, Standings
from headwise.report.recommendation import GLOBAL, LOCAL, YARDSTICKS, list_level
from headwise.stats import EQUAL, Cells
from league import order_portfolio, rank_defaults

SIZES = ((4, 2), (8, 2), (8, 3), (20, 3), (20, 4))
"""how many methods beside the yardsticks, on how many draws"""
Traffic = dict[str, float]


def main(table: Path) -> None:
    groups = rank_defaults(read_csv(table)).groups
    order = {g.name: order_portfolio(Standings(tuple(other for other in groups if other is not g))) for g in groups}
    head = ["methods", "draws", "rule", "regret", "worse than local training", "by, mean", "by, most"]
    for row in ([*head, *(f"regret, {g.name}" for g in groups)], ["---"] * (len(head) + len(groups))):
        print(f"| {' | '.join(row)} |", flush=True)
    for methods, draws in SIZES:
        for title, rule in RULES.items():
            outcomes = {g.name: judge(g, rule, order[g.name][:methods], draws) for g in groups}
            regrets = [f"{100 * fmean(regret for regret, _ in each):.1f}" for each in outcomes.values()]
            both = [outcome for each in outcomes.values() for outcome in each]
            losses = [100 * loss for _, loss in both]
            row = [str(methods), str(draws), title, f"{100 * fmean(regret for regret, _ in both):.2f}"]
            row += [f"{fmean(loss > 100 * EQUAL for loss in losses):.0%}", f"{fmean(losses):.2f}", f"{max(losses):.1f}"]
            print(f"| {' | '.join([*row, *regrets])} |", flush=True)


def judge(
    group: Group, rule: Callable[[Cells, Traffic], str], portfolio: list[str], draws: int
) -> list[tuple[float, float]]:
    """The regret and the loss against local training of the method that the rule names, by the draws that it saw."""
    names = [name for name in (*YARDSTICKS, *portfolio) if name in group.scored]
    traffic = {name: sum(r.kb_down + r.kb_up for r in group.scored[name].values()) for name in names}
    outcomes: list[tuple[float, float]] = []
    for seen in combinations(range(len(group.draws)), draws):
        rest = [k for k in range(len(group.draws)) if k not in seen]
        name = rule(take(group.cells, names, [*seen]), traffic)
        judged = take(group.cells, names, rest)
        best = judged.ranking[0]
        loss = judged.difference(LOCAL, name).value
        outcomes.append((judged.difference(best, name).value, max(loss, 0.0)))
    return outcomes


def take(cells: Cells, names: list[str], draws: list[int]) -> Cells:
    return replace(cells, scores={name: cells.scores[name][draws] for name in names}, weights=cells.weights[draws])


def take_best(cells: Cells, traffic: Traffic) -> str:
    return cells.ranking[0]


def take_simplest_of_level(cells: Cells, traffic: Traffic) -> str:
    """What `choose` does, whose race may have tuned settings as well."""
    return min(list_level(cells, EQUAL, LOCAL), key=lambda name: (name != LOCAL, name != GLOBAL, traffic[name]))


def take_local_unless_behind(cells: Cells, traffic: Traffic) -> str:
    """What `choose` did until November 2026."""
    best = cells.ranking[0]
    lead = cells.difference(best, LOCAL)
    near = LOCAL in cells.not_worse_than_best(EQUAL) and (not lead.excludes_zero or lead.value <= EQUAL)
    return LOCAL if near else take_simplest_of_level(cells, traffic)


RULES = {
    "local training unless shown to be behind": take_local_unless_behind,
    "the simplest within a standard error of the best": take_simplest_of_level,
    "the best": take_best,
}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
