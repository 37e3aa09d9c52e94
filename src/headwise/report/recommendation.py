"""Which method to use, in words: what `headwise choose` answers, decided on validation samples.

Test samples are compared here, once, for the methods that the answer names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import pluralize
from ..log.metrics import Metric, percent
from ..log.schema import figures
from ..stats import EQUAL, FEW, Cells
from .data import command_of
from .results import Line, Setting
from .tables import Table
from .words import NAMED, SAME, describe_difference, describe_guess, points

LOCAL = "standalone"
GLOBAL = "fedavg"
FINE_TUNED = "fedavg-ft"
YARDSTICKS = (LOCAL, GLOBAL, FINE_TUNED)
"""always compared: local training, one global model, and that model fine-tuned by each client"""
SPREAD = 0.05
"""share of the spread over clients that makes no difference in practice, of metrics that are not in per cent"""
GUESS = "guessing"
RIVALS = 20
"""methods that must have been tried beside local training before learning together is said not to pay"""


@dataclass(frozen=True)
class Recommendation:
    """The answer: the lines that were left at the end, on the draws that all of them have."""

    setting: Setting
    settings: Mapping[str, Mapping[str, Any]]
    """by line, what differs from the given experiment"""
    limits: Sequence[str]
    """sentences about what was cut short, left out or not tried"""
    screened: Table
    """every method that was tried, on the first draw"""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """those that ran on fewer of the draws that decide, and on how many"""
    rounds: tuple[int, int] = (1, 1)
    """those of each run, and those of the given experiment"""

    @property
    def metric(self) -> Metric:
        return self.setting.metric

    @cached_property
    def lines(self) -> dict[str, Line]:
        return {line.name: line for line in self.setting.lines}

    @cached_property
    def validation(self) -> Cells:
        """Every line on validation samples: these decide."""
        return self._cells(self.setting.lines, "val")

    @cached_property
    def test(self) -> Cells:
        """The lines that the answer names, on test samples."""
        named = {self.pick, self.local, self.one_model, self.for_worst_tenth, self.for_traffic, *YARDSTICKS}
        return self._cells([line for line in self.setting.lines if line.name in named], "test")

    def _cells(self, lines: Sequence[Line], part: str) -> Cells:
        cells = self.setting.cells(lines, part)
        assert cells is not None, "the lines have no draw in common"
        return weigh_clients_equally(cells)

    @cached_property
    def equal(self) -> float:
        """A difference that makes no difference in practice."""
        return practical_equality(self.validation, self.metric)

    @cached_property
    def near(self) -> list[str]:
        """The lines that can't be told apart from the best, which is the first.

        Whether a yardstick is behind is a question from before any run, so its own interval decides, without Holm.
        """
        cells = self.validation
        best, *others = cells.not_worse_than_best(self.equal)
        behind = [n for n in others if self.method_of(n) in YARDSTICKS and cells.difference(best, n).excludes_zero]
        return [best, *(n for n in others if n not in behind or cells.difference(best, n).value <= self.equal)]

    @cached_property
    def level(self) -> list[str]:
        """The lines that are level with the best, as `list_level` says."""
        return list_level(self.validation, self.equal, self.local)

    @cached_property
    def pick(self) -> str:
        """The simplest line of those level with the best: local training, one global model, then least traffic."""
        simplest = [name for name in (self.local, self.one_model) if name in self.level]
        return (simplest or sorted(self.level, key=self._cost))[0]

    def _cost(self, name: str) -> tuple[float, float]:
        return self.traffic(name), self.lines[name].per_round("seconds")

    def method_of(self, name: str) -> str:
        return self.lines[name].runs[0].method

    @cached_property
    def local(self) -> str | None:
        """The best line of local training, tuned or not; None if none was left."""
        return self._best_of(LOCAL)

    @cached_property
    def one_model(self) -> str | None:
        return self._best_of(GLOBAL)

    def _best_of(self, method: str) -> str | None:
        return next((name for name in self.validation.ranking if self.method_of(name) == method), None)

    def traffic(self, name: str) -> float:
        """Bytes per round over all clients, up and down."""
        return self.lines[name].per_round("bytes_up") + self.lines[name].per_round("bytes_down")

    @cached_property
    def for_worst_tenth(self) -> str:
        """The best line for the worst tenth of the clients: the recommended one, unless another is better."""
        values = {name: self.validation.worst_tenth(name).value for name in self.lines}
        best = max(values, key=lambda name: self.metric.gain(values[name], 0.0))
        return best if self.metric.gain(values[best], values[self.pick]) >= SAME else self.pick

    @cached_property
    def guessed(self) -> Cells | None:
        """The recommended line on test samples beside what guessing scores there; None where that is not defined."""
        rows = [run.floors for run in self.lines[self.pick].by_cell.values()]
        floors = np.array([[np.nan if floor is None else floor for floor in row] for row in rows])
        scores = self.test.scores[self.pick]
        if floors.size != scores.size or np.isnan(floors).all():
            return None
        return replace(self.test, scores={self.pick: scores, GUESS: floors.reshape(scores.shape)})

    @cached_property
    def for_traffic(self) -> str:
        """The line that sends least among those that can't be told apart from the best."""
        return min(self.near, key=self.traffic)

    @property
    def draws(self) -> int:
        return self.validation.draws

    def to_plain(self) -> dict[str, Any]:
        rows = dict(zip(self.lines, self.table()[1], strict=True))
        return {
            "pick": self.pick,
            "settings": self.settings,
            "near": self.near,
            "for_worst_tenth": self.for_worst_tenth,
            "for_traffic": self.for_traffic,
            "draws": self.draws,
            "metric": self.metric.name,
            "floor": self.guessed and self.guessed.mean(GUESS).value,
            "validation": {name: self.validation.mean(name)._asdict() for name in rows},
            "test": {name: self.test.mean(name)._asdict() for name in self.test.scores},
            "best_probabilities": self.validation.best_probabilities(self.equal),
            "words": self.words(),
        }

    def table(self) -> Table:
        """A row per line: its score, how certain that is, and its cost; test scores only for named lines."""
        form = self.metric.form
        cells = self.validation
        likely = cells.best_probabilities(self.equal)
        head = ["method", "validation, mean client", "validation, worst tenth", "best, or as good"]
        head += ["validation, worse than local training", "test, mean client", "KB / round", "s / round"]
        rows: list[list[str]] = []
        for name in self.validation.ranking:
            worse_off = "" if self.local in (None, name) else f"{cells.share_worse_off(name, self.local).value:.0%}"
            test = form(self.test.mean(name).value) if name in self.test.scores else ""
            measured = [form(cells.mean(name).value), form(cells.worst_tenth(name).value), f"{likely[name]:.0%}"]
            costs = [f"{self.traffic(name) / 1024:,.1f}", f"{self.lines[name].per_round('seconds'):.2g}"]
            rows.append([name, *measured, worse_off, test, *costs])
        return head, rows

    def commands(self) -> list[str]:
        """One per line, of its first draw."""
        return [command_of(self.lines[name].runs[0]) for name in self.validation.ranking]

    def words(self) -> list[str]:
        """The answer."""
        return [
            self._after() + self._verdict(),
            *self._compare_with_floor(),
            *self._compare_with_one_model(),
            *self._describe_ties(),
            *self._describe_others(),
            *self._describe_worse_off(),
            *self._privacy(),
            self._how_sure(),
            *self._list_left_out(),
            *self._still_rising(),
            *self.limits,
        ]

    def _after(self) -> str:
        run, given = self.rounds
        return f"After {run} of {pluralize(given, 'round')}: " if run < given else ""

    def _verdict(self) -> str:
        """Whether learning together pays."""
        pick = self.pick
        local = self.local
        score = f"gives the mean client {self._format_tested(pick)}"
        if pick == local:
            others = [name for name in self.validation.ranking if self.method_of(name) != LOCAL]
            if not others:
                return f"Local training {score}; no other method ended."
            lead = self._difference(self.validation, others[0], pick)
            shown = self.validation.difference(others[0], pick).high <= self.equal
            tried = max(len(self.screened[1]), len({self.method_of(name) for name in self.lines})) - 1
            verdict = "Nothing shows that learning together pays here"
            if shown:
                few = f"Of {pluralize(tried, 'other method')} that ran, none pays here"
                verdict = "Learning together does not pay here" if tried >= RIVALS else few
            more = "" if shown or lead.startswith("behind") else " A larger --budget may show that it does."
            return f"{verdict}: local training {score}; on validation samples, {others[0]} is {lead}.{more}"
        if local is None:
            return f"Use {pick}: it {score}. Local training did not end, so nothing can be compared with it."
        lead = self.test.difference(pick, local)
        scores = f"{pick} {score}, local training {self.metric.form(self.test.mean(local).value)}"
        scores = f"{scores}; {pick} is {self._difference(self.test, pick, local)}"
        how = "one model for everybody is enough" if self.method_of(pick) == GLOBAL else f"use {pick}"
        if np.isnan(lead.low):
            return f"Of the methods that ran, {how}. {scores}."
        if lead.low > 0 and (self.draws > 1 or self.setting.is_one_division):  # another draw may differ
            return f"Learning together pays here: {how}. {scores}."
        more = "A larger --budget would tell more."
        if lead.value > 0:
            return f"Learning together probably pays here: {how}. {scores}. {more}"
        hint = "show" if self.validation.difference(pick, local).low > 0 else "suggest"
        shown = f"Validation samples {hint} that learning together pays here, test samples do not"
        return f"{shown}: {how}, but don't rely on it. {scores}. {more}"

    def _difference(self, cells: Cells, one: str, other: str) -> str:
        return describe_difference(cells, self.metric, one, other, one_division=self.setting.is_one_division)

    def _format_tested(self, name: str) -> str:
        value, low, high = self.test.mean(name)
        span = self.metric.span(low, high)
        return f"{self.metric.form(value)} ({self.metric.label} on test samples{span and f', {span}'})"

    def _compare_with_floor(self) -> list[str]:
        """What guessing scores, and whether anything was learned at all."""
        if self.guessed is None:
            return []
        guess = f"{describe_guess(self.setting)} gives {self.metric.form(self.guessed.mean(GUESS).value)}"
        sentence = f"{guess[0].upper()}{guess[1:]}"
        lead = self.guessed.difference(self.pick, GUESS)
        if (lead.value if np.isnan(lead.low) else lead.low) > 0:
            return [f"{sentence}."]
        return [f"{sentence}: nothing shows that {self.pick} has learned more than that."]

    def _compare_with_one_model(self) -> list[str]:
        one = self.one_model
        if one is None or self.method_of(self.pick) in (LOCAL, GLOBAL):
            return []
        lead = self._difference(self.test, self.pick, one)
        value = self.metric.form(self.test.mean(one).value)
        return [f"One global model for everybody ({one}) gives {value}: {self.pick} is {lead}."]

    def _describe_ties(self) -> list[str]:
        others = [name for name in self.near if name != self.pick]
        if not others:
            over = f"{self.draws} draws" if self.draws > 1 else "seeds"
            ran = f"of the {len(self.lines)} that ran on all {over}, every other" * bool(self.left_out)
            behind = f"{ran or 'every other method'} is clearly behind {self.pick}"
            return [f"On validation samples, {behind}."] if len(self.lines) > 1 else []
        reason = "sends least of those closest to the best" if len(self.level) > 1 else "has the best score"
        if self.pick == self.local:
            reason = "sends nothing"
        elif self.method_of(self.pick) == GLOBAL:
            reason = "is one model for everybody"
        names = ", ".join([self.pick, *others])
        return [f"Can't be told apart on validation samples: {names}. Take {self.pick}: it {reason}."]

    def _describe_others(self) -> list[str]:
        """For whom another line is better."""
        pick = self.pick
        worst = self.for_worst_tenth
        least = self.for_traffic
        sentences = [f"On validation samples, {pick} is also best for the worst tenth of the clients."]
        if worst != pick:
            judged, tested = (
                [self.metric.form(cells.worst_tenth(name).value) for name in (worst, pick)]
                for cells in (self.validation, self.test)
            )
            best = f"On validation samples, {worst} is best for the worst tenth of the clients: {judged[0]}"
            sentences = [f"{best}, {pick} {judged[1]}; on test samples, {worst} {tested[0]}, {pick} {tested[1]}."]
        if self.method_of(least) != LOCAL and self.traffic(least) < self.traffic(pick):
            sizes = [f"{self.traffic(name) / 1024:,.1f} KB" for name in (least, pick)]
            sentences.append(
                f"Least traffic among those that can't be told apart: {least}, {sizes[0]} per round; {pick} {sizes[1]}."
            )
        return sentences

    def _describe_worse_off(self) -> list[str]:
        pick = self.pick
        local = self.local
        test = self.test
        if local in (None, pick):
            return []
        share, low, high = test.share_worse_off(pick, local)
        span = "" if np.isnan(low) else f" ({low:.0%} to {high:.0%})"
        over = f", averaged over {pluralize(test.draws, 'draw')}" if test.draws > 1 else ""
        sentence = (
            f"On test samples, worse off with {pick} than with local training: {share:.0%} of the clients{span}{over}"
        )
        if not self.setting.has_same_clients:
            return [f"{sentence}."]
        gains = (test.scores[pick] - test.scores[local]).mean((0, 1)) * self.metric.gain(1.0, 0.0)
        losers = [int(c) for c in np.argsort(gains) if gains[c] <= -SAME]
        names = self.setting.run.names
        named = [
            f"{names[c] if names else f'client {c}'} ({points(self.metric, gains[c], '+')})" for c in losers[:NAMED]
        ]
        return [f"{sentence}{': ' if named else ''}{', '.join(named)}{', ...' if len(losers) > NAMED else ''}."]

    def _privacy(self) -> list[str]:
        promised = self.lines[self.pick].runs[0].privacy
        return [f"Differential privacy of {self.pick}: {promised}."] if promised else []

    def _how_sure(self) -> str:
        likely = self.validation.best_probabilities(self.equal)[self.pick]
        if not self.validation.repeated or np.isnan(self.validation.mean(self.pick).low):
            return "There is one run of each method, so nothing shows how certain this is."
        over = pluralize(self.draws, "draw") if self.draws > 1 else "the clients of one draw; another draw may differ"
        over = self.setting.repeats if self.setting.is_one_division else over
        few = f", which are few: {FEW} or more say more" if 1 < self.draws < FEW else ""
        among = f" of these {len(self.lines)}" * bool(self.left_out)
        close = f"the best{among}, or at most {points(self.metric, self.equal)} behind the best"
        return f"{self.pick} is {close}, with a probability of {likely:.0%}, over {over}{few}."

    def _list_left_out(self) -> list[str]:
        """The lines that ran on fewer draws, about which less is known."""
        sentences: list[str] = []
        for draws in sorted({*self.left_out.values()}):
            names = [name for name, count in self.left_out.items() if count == draws]
            others = f"{len(names)} others were" if len(names) > 1 else "1 other was"
            after = ("the first draw", "one draw")[draws] if draws < 2 else f"{draws} draws"
            sentences.append(f"{others} left out after {after}: {', '.join(names)}.")
        return sentences

    def _still_rising(self) -> list[str]:
        """Lines that were still learning when they ended: with more rounds, the order may change."""
        rising = [name for name, line in self.lines.items() if _is_rising(line, self.equal)]
        if not rising:
            return []
        return [f"Still improving in the last round: {', '.join(rising)}. With more rounds, the order may change."]


def weigh_clients_equally(cells: Cells) -> Cells:
    """The same cells, with equal weights for all clients."""
    return replace(cells, weights=np.ones_like(cells.weights), aggregate=None)


def list_level(cells: Cells, equal: float, local: str | None) -> list[str]:
    """The methods at most one standard error, or a negligible difference, behind the best; none behind `local`."""
    best = cells.ranking[0]
    end = cells.ranking.index(local) + 1 if local else None
    slack = {name: max(cells.standard_error(best, name), equal) for name in cells.ranking[:end]}
    return [name for name in slack if cells.difference(best, name).value <= slack[name]]


def practical_equality(cells: Cells, metric: Metric) -> float:
    """Half a point of a metric in per cent, else a share of the spread over clients."""
    if metric.form is percent:
        return EQUAL
    spreads = [np.nanstd(scores, axis=2).mean() for scores in cells.scores.values()]
    return SPREAD * float(np.median(spreads))


def _is_rising(line: Line, equal: float) -> bool:
    """Whether validation scores improved by more than `equal` in the last quarter of the rounds."""
    curves = [
        [values[line.metric.validation] for row in run.rounds if (values := figures(row, line.moment, line.metric))]
        for run in line.runs
    ]
    steps = [line.metric.gain(c[-1], c[-2]) for c in curves if len(c) > 1 and None not in c[-2:]]
    return bool(steps) and float(np.mean(steps)) > equal
