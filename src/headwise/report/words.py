"""The results in plain sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..log.metrics import percent
from .clients import Accuracies, accuracies, floors
from .results import Line, Setting

NAMED = 5
"""up to this many clients are listed by number; more are only counted"""


def failure_words(setting: Setting) -> list[str]:
    """How often each method's clients failed and why, over all seeds."""
    said: list[str] = []
    for line in setting.lines:
        found = Counter[str]()
        for summary in line.summaries:
            found.update(summary.get("failed", {}))
        if found:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in found.most_common())
            said.append(f"Clients of {line.name} failed {found.total()} times: {reasons}.")
    return said


def words(setting: Setting) -> list[str]:
    """Who won, by how much, whether that is more than chance, and who would be better off alone."""
    lines = setting.measured
    if not lines:
        return ["Nothing was measured: no client has test samples, or evaluate.moments is empty."]
    best, alone = lines[0], setting.alone
    said = [
        f"{best.name} gives its clients the best models: they get {percent(best.accuracy)} of their test samples right."
    ]
    if len(lines) > 1 and lines[1] is not alone:
        said.append(f"Next is {lines[1].name} with {percent(lines[1].accuracy)}: {_lead(setting, best, lines[1])}.")
    if alone is best and len(lines) > 1:
        said.append("No other method helped: here, clients do best alone.")
    elif alone is not None and alone is not best:
        said.append(f"Training alone gives {percent(alone.accuracy)}: {_lead(setting, best, alone)}.")
        worse = [f"{line.name} ({percent(line.accuracy)})" for line in lines if line.accuracy < alone.accuracy]
        said += [f"Clients would be better off alone than with {', '.join(worse)}."] if worse else []
    if setting.floor is not None and (below := [x.name for x in lines if x.accuracy < (setting.floor or 0)]):
        said.append(
            f"Below the floor of {percent(setting.floor)}, which is what always guessing a client's most frequent "
            f"class scores: {', '.join(below)}."
        )
    return said + _privacy(lines)


def client_words(setting: Setting) -> list[str]:
    """Which clients the best method serves better than training alone, and which worse than guessing."""
    if not setting.measured:
        return []
    best, alone = setting.measured[0], setting.alone
    mine = accuracies(best).get(best.moment, {})
    said: list[str] = []
    if alone is not None and alone is not best:
        said += _gains(setting, best.name, mine, accuracies(alone).get(alone.moment, {}))
    guess = floors(setting)
    below = [c for c, value in mine.items() if c < len(guess) and value < (guess[c] or 0)]
    if below:
        said.append(f"With {best.name}, {_clients(setting, below, len(mine))} do worse than by guessing.")
    elif mine:
        said.append(f"With {best.name}, no client does worse than by guessing its most frequent class.")
    return said


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
    points = (one.accuracy - other.accuracy) * 100
    noise = max(one.noise, other.noise) * 100
    lead = f"a lead of {points:.1f} points"
    if min(len(one.runs), len(other.runs)) < 2:
        return f"{lead}, from one seed, so it may be chance"
    sure = "more" if points > 2 * noise else "not clearly more"
    return f"{lead}, {sure} than the spread over {setting.seeds} seeds"


def _gains(setting: Setting, name: str, mine: Accuracies, alone: Mapping[int, float]) -> list[str]:
    change = {c: (mine[c] - alone[c]) * 100 for c in mine if c in alone}
    if not change:
        return []
    up = [c for c, points in change.items() if points > 0]
    down = sorted((c for c, points in change.items() if points < 0), key=lambda c: change[c])
    most = max(change, key=lambda c: change[c])
    said = [f"Against training alone, {len(up)} of {len(change)} clients gain with {name} and {len(down)} lose"]
    if up:
        said.append(f"client {setting.called(most)} gains most ({change[most]:+.1f} points)")
    if down:
        said.append(f"client {setting.called(down[0])} loses most ({change[down[0]]:+.1f} points)")
    return ["; ".join(said) + "."]


def _clients(setting: Setting, which: Sequence[int], of: int) -> str:
    named = f" ({', '.join(map(setting.called, which))})" if len(which) <= NAMED else ""
    return f"{len(which)} of {of} clients{named}"
