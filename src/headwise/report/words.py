"""The results in plain sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..errors import pluralize
from ..log.metrics import ACCURACY, Metric, is_majority, percent
from ..stats import FEW, Cells
from .data import client_scores
from .results import Line, Setting

NAMED = 5
"""up to this many clients are listed by number; more are only counted"""
WHEN = {
    "pre": "right after a download (pre)",
    "stale": "with their own last models (stale)",
    "global": "with the one global model (global)",
}
SAME = 0.0005
"""a smaller difference is printed as 0.0 points or 0.000, and counts as none"""


def describe_failures(setting: Setting) -> list[str]:
    """How often each method's clients failed and why, over all seeds."""
    sentences: list[str] = []
    for line in setting.lines:
        failures = Counter[str]()
        for summary in line.summaries:
            failures.update(summary.get("failed", {}))
        if failures:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in failures.most_common())
            sentences.append(f"Clients of {line.name} failed {failures.total()} times: {reasons}.")
    return sentences


def _list_alone(setting: Setting) -> list[str]:
    """Methods whose clients received nothing, for example because they share only a body that has no parameters."""
    others = [line for line in setting.lines if line.runs[0].method != "standalone"]
    alone = [line.name for line in others if not any(s["bytes_down"] for s in line.summaries)]
    return [f"Clients of {', '.join(alone)} received nothing: they trained alone."] if alone else []


def describe_results(setting: Setting) -> list[str]:
    """Which method is best, its lead, whether that may be chance, and who would be better off with local training."""
    lines = _rank(setting)
    if not lines:
        return ["Nothing was measured: no client has test samples, or evaluate.moments is empty."]
    best = lines[0]
    local = setting.local_training
    main = setting.metric
    form = setting.metric.form
    wins = f"{best.name} gives its clients the best models" if len(lines) > 1 else f"Clients train with {best.name}"
    near = _names_near(setting, best)
    judged = ", by validation samples" * _is_judged(setting)
    tested = " on test samples" * _is_judged(setting)
    sentences = [f"{wins}{judged}: {WHEN[best.moment]}, {_score_words(main, best.score)}."]
    sentences += _compare_with_test(setting, best)
    if few := best.values(f"{main.name}_clients", best.moment):
        sentences.append(f"Not every client has test samples that define its {main.label}: {few[0]:g} were measured.")
    if len(lines) > 1 and lines[1] is not local:
        sentences.append(
            f"Next is {lines[1].name} with {_at(lines[1])}{tested}: {best.name} is {_lead(setting, best, lines[1])}."
        )
    if local is best and len(lines) > 1:
        sentences.append(
            f"No other method is ahead of local training{' on validation samples' if judged else ' here'}."
        )
    elif local is not None and local is not best:
        sentences.append(f"Local training gives {_at(local)}{tested}: {best.name} is {_lead(setting, best, local)}.")
        sentences += _list_behind(setting, near, local)
    floor = setting.floor
    if floor is not None and (below := [f"{x.name} ({x.moment})" for x in lines if main.gain(x.score, floor) < 0]):
        sentences.append(
            f"Below the floor of {form(floor)}, which is what {describe_guess(setting)} scores: {', '.join(below)}."
        )
    sentences += _list_alone(setting)
    if setting.is_one_division:
        sentences.append(
            "Every draw divides the data in the same way, as where files say which samples are for testing: these are "
            f"{setting.repeats}."
        )
    return sentences + _list_near(setting, near, best) + _describe_own_models(best, lines) + _describe_privacy(lines)


def _list_behind(setting: Setting, near: Sequence[str], local: Line) -> list[str]:
    """The lines that score below local training: certainly, or perhaps by chance."""
    lines = [line for line in setting.ranking if setting.metric.gain(line.score, local.score) < 0]
    surely = [line for line in lines if line.name not in near and _is_ahead(setting, local, line)]
    groups = {
        "Clients would be better off with local training than with": surely,
        "Behind local training, which may be chance:": [line for line in lines if line not in surely],
    }
    return [
        f"{words} {', '.join(f'{x.name} ({x.metric.form(x.score)}, {x.moment})' for x in group)}."
        for words, group in groups.items()
        if group
    ]


def _is_ahead(setting: Setting, one: Line, other: Line) -> bool:
    cells = setting.cells([one, other])
    return cells is not None and cells.difference(one.name, other.name).low > 0


def _names_near(setting: Setting, best: Line) -> list[str]:
    """Who can't be told apart from the best line over the draws; empty if there is only one draw."""
    lines = [line for line in setting.ranking if line.moment == best.moment]
    cells = setting.cells(lines, "val" if _is_judged(setting) else "test") if len(lines) > 1 else None
    if cells is None or cells.draws == 1:
        return []
    return [name for name in cells.not_worse_than_best() if name != best.name]


def _list_near(setting: Setting, near: Sequence[str], best: Line) -> list[str]:
    """The lines that can't be told apart from the best one, and a warning if there are few draws."""
    where = " on validation samples" * _is_judged(setting)
    sentences = [f"Can't be told apart from {best.name}{where}: {', '.join(near)}."] if near else []
    few = f"Intervals over {setting.draws} draws are wide and say little: run {FEW} or more (--draws {FEW})."
    return [*sentences, few] if len(setting.ranking) > 1 and 1 < setting.draws < FEW else sentences


def _at(line: Line) -> str:
    return f"{line.metric.form(line.score)} ({line.moment})"


def _is_judged(setting: Setting) -> bool:
    """Whether all of several lines have scores on validation samples, which then decide."""
    what = setting.metric.validation
    return len(setting.ranking) > 1 and all(line.values(what, line.moment) for line in setting.ranking)


def _rank(setting: Setting) -> list[Line]:
    """The lines with a score, best first: by validation samples if there are any, as test samples must not choose."""
    what = setting.metric.validation
    if not _is_judged(setting):
        return setting.ranking
    return sorted(setting.ranking, key=lambda line: setting.metric.gain(0.0, line.mean(what, line.moment)))


def _compare_with_test(setting: Setting, best: Line) -> list[str]:
    """The validation score that decided, and the method that leads on test samples."""
    if not _is_judged(setting):
        return []
    value = setting.metric.form(best.mean(setting.metric.validation, best.moment))
    first = setting.ranking[0]
    decided = f"On validation samples, which decide, it has {value} ({best.moment})"
    if first is best or setting.metric.gain(first.score, best.score) < SAME:
        return [f"{decided}; it also leads on test samples."]
    return [f"{decided}; on test samples, which must not decide, {first.name} leads with {_at(first)}."]


def _describe_own_models(best: Line, lines: Sequence[Line]) -> list[str]:
    """The best method by the models that clients have after training, if these are better; and how to export them."""
    how = "headwise export --moment post writes them"
    if best.moment == "stale":
        return [f"Own last models are those after training: {how}."]
    kept = [line for line in lines if line.values("last", "stale")]
    first = max(kept, key=lambda line: line.metric.gain(line.mean("last", "stale"), 0.0), default=best)
    if not kept or best.metric.gain(first.mean("last", "stale"), best.score) < SAME:
        return []
    value = first.metric.form(first.mean("last", "stale"))
    return [f"With their own last models (stale), {first.name} is best with {value}: {how}."]


def describe_clients(setting: Setting) -> list[str]:
    """Which clients the best method serves better than local training, and which worse than guessing."""
    if not setting.ranking:
        return []
    best = _rank(setting)[0]
    local = setting.local_training
    mine = client_scores(best, setting).get(best.moment, {})
    main = setting.metric
    sentences: list[str] = []
    if local is not None and local is not best:
        sentences += _count_gains(setting, best, local)
    guess = {c: floor for c, floor in enumerate(setting.run.floors) if floor is not None}
    below = [c for c, value in mine.items() if c in guess and main.gain(value, guess[c]) < 0]
    if below:
        sentences.append(
            f"With {best.name} ({best.moment}), {_clients(setting, below, len(mine))} do worse than by guessing."
        )
    elif mine and (guess or main is ACCURACY):
        plain = "by guessing its most frequent class" if _is_majority(setting) else "without looking at its inputs"
        sentences.append(f"With {best.name} ({best.moment}), no client does worse than {plain}.")
    return sentences


def _describe_privacy(lines: Sequence[Line]) -> list[str]:
    """Each method's privacy guarantee; empty if none has any."""
    promised: dict[str, list[str]] = {}
    for line in lines:
        for promise in sorted({run.privacy for run in line.runs}):
            promised.setdefault(promise or "none", []).append(line.name)
    if promised.keys() <= {"none"}:
        return []
    return [f"Differential privacy of {', '.join(names)}: {promise}." for promise, names in promised.items()]


def _lead(setting: Setting, one: Line, other: Line) -> str:
    """How far one line is ahead of another, and how certain that is."""
    if (cells := setting.cells([one, other])) is None:
        return f"ahead by {points(setting.metric, setting.metric.gain(one.score, other.score))}, on other draws"
    return describe_difference(cells, setting.metric, one.name, other.name, one_division=setting.is_one_division)


def describe_difference(cells: Cells, metric: Metric, one: str, other: str, *, one_division: bool = False) -> str:
    """How far one is ahead of or behind another, and how certain that is; with enough draws, how many would decide."""
    lead, low, high = (interval := cells.difference(one, other))
    how = "ahead"
    if lead < 0:
        how, lead, low, high = "behind", -lead, -high, -low
    words = f"{how} by {points(metric, lead)}"
    if math.isnan(low):
        return f"{words}, from one run, so it may be chance"
    scale, digits = (100, 1) if metric.form is percent else (1, 3)
    span = " to ".join(f"{round(scale * end, digits) + 0.0:+.{digits}f}" for end in (low, high))  # -0.0 becomes 0.0
    words += f" ({span} over {_repeats(cells, one_division)})"
    if interval.excludes_zero:
        return words
    more = cells.draws_to_separate(one, other) if cells.draws >= FEW else None
    return f"{words}, which may be chance" + (f": about {more} draws would tell" if more else "")


def _repeats(cells: Cells, one_division: bool) -> str:
    """What an interval covers."""
    if one_division:
        return f"{pluralize(cells.seeds, 'seed')} of one division of the data"
    if cells.draws > 1:
        return pluralize(cells.draws, "draw")
    return f"{pluralize(cells.seeds, 'seed')} and the clients of one draw; another draw may differ"


def _count_gains(setting: Setting, best: Line, local: Line) -> list[str]:
    """How many clients are better and worse off than with local training, and by how much."""
    cells = setting.cells([best, local])
    if cells is None:
        return []
    main = setting.metric
    sign = 1.0 if main.better == "up" else -1.0
    gains = sign * (cells.scores[best.name] - cells.scores[local.name]).mean(1)  # [draws, clients]
    known = gains[~np.isnan(gains)]
    up = int((known >= SAME).sum())
    down = int((known <= -SAME).sum())
    lose = "is" if down == 1 else "are"
    over = f" over {pluralize(cells.draws, 'draw')}" if cells.draws > 1 else ""
    counts = f"{up} of {len(known)} clients{over} are better off with {best.name} and {down} {lose} worse off"
    clauses = [f"Against local training, {counts} ({best.moment})"]
    if setting.has_same_clients and len(known):
        of_clients = np.nanmean(gains, axis=0) if cells.draws > 1 else gains[0]
        most = int(np.nanargmax(of_clients))
        least = int(np.nanargmin(of_clients))
        if up:
            clauses.append(f"client {setting.label_of(most)} gains most ({points(main, of_clients[most], '+')})")
        if down:
            clauses.append(f"client {setting.label_of(least)} loses most ({points(main, of_clients[least], '+')})")
    return ["; ".join(clauses) + "."]


def _score_words(main: Metric, value: float) -> str:
    if main is ACCURACY:
        return f"they get {percent(value)} of their test samples right"
    return f"their {main.label} is {main.form(value)}{'' if main.better == 'up' else ', where less is better'}"


def _is_majority(setting: Setting) -> bool:
    return is_majority(setting.metric, setting.run.manifest["experiment"]["task"])


def describe_guess(setting: Setting) -> str:
    return (
        "always guessing a client's most frequent class"
        if _is_majority(setting)
        else "a client's best constant prediction"
    )


def points(main: Metric, gain: float, sign: str = "") -> str:
    """A difference in points, or in the metric's own unit."""
    return f"{gain * 100:{sign}.1f} points" if main.form is percent else f"{gain:{sign}.3f}"


def _clients(setting: Setting, which: Sequence[int], of: int) -> str:
    named = f" ({', '.join(map(setting.label_of, which))})" if len(which) <= NAMED else ""
    return f"{len(which)} of {of} clients{named}"
