"""The results in plain sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..log.metrics import ACCURACY, Metric, is_majority, percent
from .data import Scores, client_scores
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


def failure_words(setting: Setting) -> list[str]:
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


def words(setting: Setting) -> list[str]:
    """Who won, by how much, whether that is more than chance, and who would be better off with local training."""
    lines = setting.ranking
    if not lines:
        return ["Nothing was measured: no client has test samples, or evaluate.moments is empty."]
    best, alone, main, form = lines[0], setting.local_training, setting.metric, setting.metric.form
    wins = f"{best.name} gives its clients the best models" if len(lines) > 1 else f"Clients train with {best.name}"
    sentences = [f"{wins}: {WHEN[best.moment]}, {_score_words(main, best.score)}.", *_on_validation(setting)]
    if few := best.values(f"{main.name}_clients", best.moment):
        sentences.append(f"Not every client has test samples that define its {main.label}: {few[0]:g} were measured.")
    if len(lines) > 1 and lines[1] is not alone:
        sentences.append(f"Next is {lines[1].name} with {_at(lines[1])}: {_lead(setting, best, lines[1])}.")
    if alone is best and len(lines) > 1:
        sentences.append("No other method helped: local training is best here.")
    elif alone is not None and alone is not best:
        sentences.append(f"Local training gives {_at(alone)}: {_lead(setting, best, alone)}.")
        worse = [
            f"{line.name} ({form(line.score)}, {line.moment})"
            for line in lines
            if main.gain(line.score, alone.score) < 0
        ]
        sentences += [f"Clients would be better off with local training than with {', '.join(worse)}."] if worse else []
    floor = setting.floor
    if floor is not None and (below := [f"{x.name} ({x.moment})" for x in lines if main.gain(x.score, floor) < 0]):
        sentences.append(
            f"Below the floor of {form(floor)}, which is what {_guess(setting)} scores: {', '.join(below)}."
        )
    return sentences + _kept(best, lines) + _privacy(lines)


def _at(line: Line) -> str:
    return f"{line.metric.form(line.score)} ({line.moment})"


def _on_validation(setting: Setting) -> list[str]:
    """Which line to choose, and what it is then worth: test samples must not choose."""
    main, what = setting.metric, setting.metric.validation
    judged = [line for line in setting.lines if line.measured_moments and line.values(what, line.moment)]
    if len(judged) < 2:
        return []
    best = max(judged, key=lambda line: main.gain(line.mean(what, line.moment), 0.0))
    value = f"{main.form(best.mean(what, best.moment))} ({best.moment})"
    decided = f"On validation samples, which should decide, {best.name} is best with {value}"
    return [f"{decided}; on test samples it has {_at(best)}."]


def _kept(best: Line, lines: Sequence[Line]) -> list[str]:
    """Who wins with the models that clients have after training, if these are better; and how to export them."""
    how = "headwise export --moment post writes them"
    if best.moment == "stale":
        return [f"Own last models are those after training: {how}."]
    kept = [line for line in lines if line.values("last", "stale")]
    first = max(kept, key=lambda line: line.metric.gain(line.mean("last", "stale"), 0.0), default=best)
    if not kept or best.metric.gain(first.mean("last", "stale"), best.score) < SAME:
        return []
    value = first.metric.form(first.mean("last", "stale"))
    return [f"With their own last models (stale), {first.name} is best with {value}: {how}."]


def client_words(setting: Setting) -> list[str]:
    """Which clients the best method serves better than local training, and which worse than guessing."""
    if not setting.ranking:
        return []
    best, alone = setting.ranking[0], setting.local_training
    mine, main = client_scores(best).get(best.moment, {}), setting.metric
    sentences: list[str] = []
    if alone is not None and alone is not best:
        sentences += _gains(setting, best, mine, client_scores(alone).get(alone.moment, {}))
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


def _privacy(lines: Sequence[Line]) -> list[str]:
    """Each method's privacy guarantee; empty if none has any."""
    promised: dict[str, list[str]] = {}
    for line in lines:
        for promise in sorted({run.privacy for run in line.runs}):
            promised.setdefault(promise or "none", []).append(line.name)
    if promised.keys() <= {"none"}:
        return []
    return [f"Differential privacy of {', '.join(names)}: {promise}." for promise, names in promised.items()]


def _lead(setting: Setting, one: Line, other: Line) -> str:
    main, points = setting.metric, setting.metric.gain(one.score, other.score)
    noise = max(one.noise, other.noise)
    lead = f"a lead of {_points(main, points)}"
    if min(len(one.runs), len(other.runs)) < 2:
        return f"{lead}, from one seed, so it may be chance"
    sure = "more" if points > 2 * noise else "not clearly more"
    return f"{lead}, {sure} than the spread over {setting.seeds} seeds"


def _gains(setting: Setting, best: Line, mine: Scores, alone: Mapping[int, float]) -> list[str]:
    main = setting.metric
    change = {c: main.gain(mine[c], alone[c]) for c in mine if c in alone}
    if not change:
        return []
    up = [c for c, points in change.items() if points >= SAME]
    down = sorted((c for c, points in change.items() if points <= -SAME), key=lambda c: change[c])
    most = max(change, key=lambda c: change[c])
    lose = "loses" if len(down) == 1 else "lose"
    count = f"{len(up)} of {len(change)} clients gain with {best.name} and {len(down)} {lose} ({best.moment})"
    clauses = [f"Against local training, {count}"]
    if up:
        clauses.append(f"client {setting.label_of(most)} gains most ({_points(main, change[most], '+')})")
    if down:
        clauses.append(f"client {setting.label_of(down[0])} loses most ({_points(main, change[down[0]], '+')})")
    return ["; ".join(clauses) + "."]


def _score_words(main: Metric, value: float) -> str:
    if main is ACCURACY:
        return f"they get {percent(value)} of their test samples right"
    return f"their {main.label} is {main.form(value)}{'' if main.better == 'up' else ', where less is better'}"


def _is_majority(setting: Setting) -> bool:
    return is_majority(setting.metric, setting.run.manifest["experiment"]["task"])


def _guess(setting: Setting) -> str:
    return "always guessing a client's most frequent class" if _is_majority(setting) else "a model without inputs"


def _points(main: Metric, gain: float, sign: str = "") -> str:
    return f"{gain * 100:{sign}.1f} points" if main.form is percent else f"{gain:{sign}.3f}"


def _clients(setting: Setting, which: Sequence[int], of: int) -> str:
    named = f" ({', '.join(map(setting.label_of, which))})" if len(which) <= NAMED else ""
    return f"{len(which)} of {of} clients{named}"
