"""A league's standings over all federations: ranks, wins and losses, and which method suits which kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from ..errors import pluralize
from ..log.metrics import Metric, metrics
from ..report.recommendation import FINE_TUNED, LOCAL
from ..report.tables import Table
from ..stats import EQUAL, FEW, Cells, Interval, adjust_by_holm, rank, signed_rank_p
from .cells import Result

RIVALS = (LOCAL, FINE_TUNED)
AGAINST_LOCAL = ("ahead of local training", "worse off")
"""columns of a federation's table that need local training"""
STAR = (
    "A star marks what can't be told apart from the best: it is behind by no more than half a point, or by what may be "
    "chance, after a correction for the number of methods compared."
)


def entry_of(result: Result) -> str:
    """A method, with its settings if they are not the default ones."""
    return result.method if result.setting == "default" else f"{result.setting} {result.method}"


@dataclass(frozen=True)
class Group:
    name: str
    results: tuple[Result, ...]

    @cached_property
    def by_draw(self) -> dict[str, dict[int, Result]]:
        """The results that have a score, by entry and draw."""
        entries: dict[str, dict[int, Result]] = {}
        for result in self.results:
            if result.mean_client is not None:
                entries.setdefault(entry_of(result), {})[result.draw] = result
        return entries

    @cached_property
    def draws(self) -> list[int]:
        """The draws to compare: they maximize the number of draws times that of methods run on all of them."""
        tried: dict[str, set[int]] = {}
        for result in self.results:
            tried.setdefault(entry_of(result), set()).add(result.draw)
        known = [tried[name] for name in self.by_draw]
        often = sorted({*chain(*known)}, key=lambda d: (-sum(d in draws for draws in known), d))
        blocks = [often[: k + 1] for k in range(len(often))]
        return sorted(max(blocks, key=lambda block: len(block) * sum({*block} <= d for d in known), default=[]))

    @cached_property
    def scored(self) -> dict[str, dict[int, Result]]:
        """The entries that have a score on all of these draws."""
        return {name: by_draw for name, by_draw in self.by_draw.items() if {*self.draws} <= {*by_draw}}

    @cached_property
    def unfinished(self) -> list[str]:
        """The entries that were not run on all of these draws, and are left out."""
        return [name for name in self.by_draw if name not in self.scored and name not in self.failed]

    @cached_property
    def failed(self) -> dict[str, str]:
        """Entries that have no score on one of these draws, or on none at all, and why."""
        errors = [r for r in self.results if r.error]
        return {entry_of(r): r.error for r in errors if r.draw in self.draws or entry_of(r) not in self.by_draw}

    @property
    def first(self) -> Result:
        return next(iter(next(iter(self.scored.values())).values()))

    @cached_property
    def metric(self) -> Metric:
        return next(m for m in metrics() if m.name == self.first.metric)

    @cached_property
    def cells(self) -> Cells:
        """Every client counts the same."""
        scores = {
            name: np.array([[by_draw[d].scores] for d in self.draws], dtype=float)  # None becomes NaN
            for name, by_draw in self.scored.items()
        }
        weights = np.ones((len(self.draws), self.first.clients))
        return Cells(scores, weights, self.first.same_clients, more_is_better=self.first.better == "up")

    @cached_property
    def near(self) -> list[str]:
        """Those that can't be told apart from the best, which is the first."""
        return self.cells.not_worse_than_best(EQUAL)

    def lead(self, name: str, other: str) -> Interval | None:
        """How far one entry is ahead of another; None if the other was not run here."""
        return self.cells.difference(name, other) if other in self.scored and name in self.scored else None

    def regret(self, name: str) -> float:
        """How far it is behind the best."""
        return self.cells.difference(self.cells.ranking[0], name).value

    def mean(self, name: str, column: str) -> float | None:
        values = [getattr(self.scored[name][d], column) for d in self.draws]
        return None if None in values else fmean(values)

    def new_client_mean(self, name: str, epochs: int) -> float | None:
        """The mean new client after so many epochs; None if there are none."""
        values = [self.scored[name][d].new_clients.get(f"{epochs} epochs") for d in self.draws]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None


def split_by_federation(results: Sequence[Result]) -> list[Group]:
    names = [*dict.fromkeys(result.federation for result in results)]
    return [Group(name, tuple(r for r in results if r.federation == name)) for name in names]


@dataclass(frozen=True)
class Standing:
    name: str
    family: str
    mean_rank: float
    regret: float
    """mean distance to the best of each federation"""
    near_best: int
    """federations in which it can't be told apart from the best"""
    against: dict[str, tuple[int, int, int]]
    """by rival: wins, undecided, losses"""
    p_values: dict[str, float]
    """by rival, of Wilcoxon's test over federations"""
    adjusted: dict[str, float]
    """the same by Holm's rule over all entries"""


@dataclass(frozen=True)
class Standings:
    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = ()
    """federations in which few methods were tried so far"""

    @cached_property
    def entries(self) -> list[str]:
        """The entries that were tried in all federations."""
        tried = [{*group.scored, *group.failed} for group in self.groups]
        return sorted(set.intersection(*tried)) if tried else []

    @cached_property
    def rivals(self) -> tuple[str, ...]:
        """The yardsticks that were run."""
        return tuple(rival for rival in RIVALS if any(rival in group.scored for group in self.groups))

    @cached_property
    def families(self) -> dict[str, str]:
        return {entry_of(r): r.family for group in self.groups for r in group.results}

    @cached_property
    def ranks(self) -> dict[str, list[float]]:
        """Of each entry in each federation; one that failed shares the last ranks."""
        of_groups = [rank([self._score(group, name) for name in self.entries]) for group in self.groups]
        return {name: [float(ranks[k]) for ranks in of_groups] for k, name in enumerate(self.entries)}

    def _score(self, group: Group, name: str) -> float:
        return group.metric.gain(group.cells.mean(name).value, 0.0) if name in group.scored else float("nan")

    @cached_property
    def table(self) -> list[Standing]:
        """Best mean rank first."""
        p_values = {rival: self._p_values(rival) for rival in self.rivals}
        adjusted = {rival: adjust_by_holm(p) for rival, p in p_values.items()}
        standings = [
            Standing(
                name,
                self.families[name],
                fmean(self.ranks[name]),
                fmean(group.regret(name) for group in self.groups if name in group.scored),
                sum(name in group.near for group in self.groups),
                {rival: self._count(name, rival) for rival in self.rivals},
                {rival: p[name] for rival, p in p_values.items() if name in p},
                {rival: p[name] for rival, p in adjusted.items() if name in p},
            )
            for name in self.entries
            if any(name in group.scored for group in self.groups)
        ]
        return sorted(standings, key=lambda s: s.mean_rank)

    def _leads(self, name: str, rival: str) -> list[Interval]:
        leads = [group.lead(name, rival) for group in self.groups]
        return [lead for lead in leads if lead is not None]

    def _p_values(self, rival: str) -> dict[str, float]:
        return {
            name: signed_rank_p([lead.value for lead in self._leads(name, rival)])
            for name in self.entries
            if name != rival and self._leads(name, rival)
        }

    def _count(self, name: str, rival: str) -> tuple[int, int, int]:
        """In how many federations the interval of the difference is above zero, contains it, is below zero."""
        leads = self._leads(name, rival)
        wins = sum(lead.low > 0 for lead in leads)
        losses = sum(lead.high < 0 for lead in leads)
        return wins, len(leads) - wins - losses, losses

    def to_plain(self) -> list[dict[str, Any]]:
        return [asdict(s) for s in self.table]

    def tabulate_families(self) -> Table:
        """The median lead over local training of each family in each federation, in points; empty without it."""
        if LOCAL not in self.rivals:
            return [], []
        families = sorted({self.families[name] for name in self.entries} - {"no sharing"})
        rows: list[list[str]] = []
        for family in families:
            members = [name for name in self.entries if self.families[name] == family]
            rows.append([f"{family} ({len(members)})", *(self._median_lead(group, members) for group in self.groups)])
        return ["family", *(group.name for group in self.groups)], rows

    def _median_lead(self, group: Group, members: Sequence[str]) -> str:
        leads = [lead.value for name in members if (lead := group.lead(name, LOCAL))]
        return f"{100 * float(np.median(leads)):+.1f}" if leads else ""

    def overview(self) -> Table:
        head = ["method", "family", "mean rank", "behind the best", "near the best"]
        head += [f"against {rival}" for rival in self.rivals] + [f"p against {rival}, Holm" for rival in self.rivals]
        rows = [
            [
                s.name,
                s.family,
                f"{s.mean_rank:.1f}",
                f"{100 * s.regret:.1f}",
                f"{s.near_best} of {len(self.groups)}",
                *("-".join(map(str, s.against[rival])) for rival in self.rivals),
                *(_p_text(s, rival) for rival in self.rivals),
            ]
            for s in self.table
        ]
        return head, rows

    def words(self) -> list[str]:
        return [*self.describe(), *self._describe_tests()]

    def describe(self) -> list[str]:
        """What was compared, which entry is first, and what is left out."""
        if not self.table:
            return ["No federation has a draw that all methods were run on."]
        draws = [len(group.draws) for group in self.groups]
        federations = pluralize(len(self.groups), "federation")
        span = pluralize(draws[0], "draw") if len({*draws}) == 1 else f"{min(draws)} to {max(draws)} draws"
        best = self.table[0]
        sentences = [f"{pluralize(len(self.table), 'method')} on {federations}, {span} each."]
        if min(draws) < FEW:
            sentences.append(f"Fewer than {FEW} draws are few: most intervals contain zero, and the order may change.")
        sentences.append(
            f"Best mean rank: {best.name} ({best.mean_rank:.1f}), {100 * best.regret:.1f} points behind the best of a "
            f"federation on average."
        )
        if self.left_out:
            sentences.append(f"Left out, since few methods were run there so far: {', '.join(self.left_out)}.")
        if unfinished := sorted({name for group in self.groups for name in group.unfinished}):
            sentences.append(f"Not run on all draws yet, and left out there: {', '.join(unfinished)}.")
        return sentences

    def _describe_tests(self) -> list[str]:
        """What Wilcoxon's test shows against each yardstick."""
        federations = pluralize(len(self.groups), "federation")
        sentences: list[str] = []
        for rival in self.rivals if self.table else ():
            sure = [s.name for s in self.table if s.adjusted.get(rival, 1.0) < 0.05]
            smallest = 2 / 2 ** len(self.groups) * (len(self.table) - 1)
            if sure:
                sentences.append(f"Different from {rival} by Wilcoxon's test and Holm's rule: {', '.join(sure)}.")
            elif smallest > 0.05:
                comparisons = pluralize(len(self.table) - 1, "comparison")
                sentences.append(
                    f"With {federations} and {comparisons}, Wilcoxon's test with Holm's rule can "
                    f"separate no method from {rival}: its smallest p-value is {min(smallest, 1):.2f}."
                )
            else:
                sentences.append(f"No method is different from {rival} by Wilcoxon's test and Holm's rule.")
        return sentences


def _p_text(standing: Standing, rival: str) -> str:
    p = standing.adjusted.get(rival)
    return "" if p is None else f"{p:.2g}"


def standings_of(results: Sequence[Result]) -> Standings:
    """Over the federations in which at least half as many entries were tried as in the one with most."""
    groups = [group for group in split_by_federation(results) if group.draws]
    tried = {group.name: len(group.scored) + len(group.failed) for group in groups}
    most = max(tried.values(), default=0)
    kept = tuple(group for group in groups if 2 * tried[group.name] >= most)
    return Standings(kept, tuple(group.name for group in groups if group not in kept))


def federation_table(group: Group) -> Table:
    """A row per entry of one federation, best first; without leads over local training if that was not run."""
    form = group.metric.form
    head = ["method", group.metric.heading, "95 % interval", "ahead of local training", "worst tenth", "worse off"]
    head += ["new, 0 epochs", "new, 5 epochs", "KB down", "KB up", "CPU s"]
    rows: list[list[str]] = []
    for name in group.cells.ranking:
        value, low, high = group.cells.mean(name)
        lead = group.lead(name, LOCAL)
        worse = group.cells.share_worse_off(name, LOCAL).value if lead is not None and name != LOCAL else None
        joined = [group.new_client_mean(name, epochs) for epochs in (0, 5)]
        costs = [group.mean(name, column) for column in ("kb_down", "kb_up", "cpu_seconds")]
        rows.append(
            [
                name + (" *" if name in group.near else ""),
                form(value),
                group.metric.span(low, high),
                _lead_text(lead) if name != LOCAL else "",
                form(group.cells.worst_tenth(name).value),
                "" if worse is None else f"{worse:.0%}",
                *("" if v is None else form(v) for v in joined),
                *("" if v is None else f"{v:,.2f}" for v in costs),
            ]
        )
    kept = [k for k, title in enumerate(head) if LOCAL in group.scored or title not in AGAINST_LOCAL]
    return [head[k] for k in kept], [[row[k] for k in kept] for row in rows]


def _lead_text(lead: Interval | None) -> str:
    if lead is None:
        return ""
    span = "" if np.isnan(lead.low) else f" ({100 * lead.low:+.1f} to {100 * lead.high:+.1f})"
    return f"{100 * lead.value:+.1f}{span}"


@dataclass(frozen=True)
class Change:
    """An entry of one federation before and after a change of the code."""

    federation: str
    name: str
    draws: int
    difference: Interval
    identical: bool


def compare_leagues(old: Sequence[Result], new: Sequence[Result]) -> list[Change]:
    """Changes of the entries and draws that both leagues have, the largest first."""
    changes: list[Change] = []
    before = {group.name: group.by_draw for group in split_by_federation(old)}
    entries = [(group.name, *entry) for group in split_by_federation(new) for entry in group.by_draw.items()]
    for federation, name, after in entries:
        earlier = before.get(federation, {}).get(name, {})
        draws = sorted(
            d
            for d in {*after} & {*earlier}
            if len(after[d].scores) == len(earlier[d].scores) and after[d].metric == earlier[d].metric
        )
        if not draws:
            continue
        scores = {k: np.array([[r[d].scores] for d in draws], float) for k, r in (("old", earlier), ("new", after))}
        first = after[draws[0]]
        weights = np.ones((len(draws), first.clients))
        cells = Cells(scores, weights, first.same_clients or len(draws) == 1, more_is_better=first.better == "up")
        identical = bool(np.allclose(scores["old"], scores["new"], atol=5e-5, equal_nan=True))
        changes.append(Change(federation, name, len(draws), cells.difference("new", "old"), identical))
    return sorted(changes, key=lambda c: -abs(c.difference.value))


def describe_changes(changes: Sequence[Change]) -> list[str]:
    """The effect of a code change, in sentences."""
    if not changes:
        return ["No method is on the same draws of the same federation in both leagues."]
    same = sum(change.identical for change in changes)
    sure = [c for c in changes if not c.identical and c.difference.excludes_zero]
    large = [c for c in sure if abs(c.difference.value) > EQUAL]
    are = "is" if len(changes) == 1 else "are"
    counted = f"{pluralize(len(changes), 'pair')} of a method and a federation {are} in both leagues"
    return [
        f"{counted}: {same} with the same scores, {len(sure)} that changed by more than chance (95 %), "
        f"{len(large)} of them by more than {100 * EQUAL:g} points.",
        "One in twenty intervals excludes zero by chance.",
    ]


def tabulate_changes(changes: Sequence[Change]) -> Table:
    rows = [
        [c.federation, c.name, str(c.draws), _lead_text(c.difference), "yes" if c.difference.excludes_zero else "no"]
        for c in changes
        if not c.identical
    ]
    return ["federation", "method", "draws", "change in points", "beyond chance"], rows
