"""A reproduced table: its rows, as Markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ..disk.jsontext import leaves
from .cells import Ask
from .tables import Printed

HEAD = (
    "method", "column", "published", "ours", "difference", "last 4", "seeds", "rounds", "moment", "floor",
    "local training", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    method: str
    column: str
    printed: Printed
    verdict: str
    ours: tuple[float, ...] = ()
    """one figure per seed, or the exact one; in percent, rounds, or the column's unit"""
    text: str = ""
    """our value if it is not a number"""
    seeds: int = 0
    rounds: int | None = None
    moment: str = ""
    others: str = ""
    """our figures at the other measured moments"""
    late: float | None = None
    """the mean of the last four evaluations, for which no round was chosen on test samples"""
    floor: float | None = None
    standalone: float | None = None

    @property
    def mean(self) -> float | None:
        return fmean(self.ours) if self.ours else None

    @property
    def std(self) -> float | None:
        return stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the printed mean."""
        return None if self.mean is None or self.printed.mean is None else self.mean - self.printed.mean

    def texts(self) -> list[str]:
        """The row for people."""
        ours = self.text or (_number(self.mean) + (f" ± {self.std:.2f}" if self.std is not None else ""))
        gap = "" if self.difference is None else f"{round(self.difference, 2):+,.2f}".replace("-0.00", "+0.00")
        return [
            self.method, self.column, self.printed.text, ours, gap, _number(self.late), str(self.seeds or ""),
            str(self.rounds or ""),
            f"{self.moment}{f' ({self.others})' if self.others else ''}", _number(self.floor),
            _number(self.standalone), self.verdict,
        ]  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        return {
            "method": self.method, "column": self.column, "published": self.printed.text,
            "published_mean": self.printed.mean, "published_std": self.printed.std,
            "ours": self.text or self.mean, "ours_std": self.std, "difference": self.difference,
            "last_four": self.late, "seeds": self.seeds, "rounds": self.rounds, "moment": self.moment,
            "other_moments": self.others, "floor": self.floor, "standalone": self.standalone, "verdict": self.verdict,
        }  # fmt: skip


@dataclass(frozen=True)
class Reproduction:
    ask: Ask
    rows: tuple[Row, ...]
    command: str = ""

    def to_plain(self) -> dict[str, Any]:
        ask = self.ask
        how = {"table": ask.name, "scale": ask.scale.name, "scaled": ask.scaled, "rules": ask.rules}
        how |= {"set": list(ask.set_by_hand), "changed": ask.changed}
        return {**how, "rows": [row.to_plain() for row in self.rows], "words": self.words()}

    def words(self) -> list[str]:
        """What a reader must know: the scale, the rules, what the paper leaves open, and notes on these cells."""
        ask = self.ask
        was_run = any(row.seeds for row in self.rows)
        sentences = list[str]()
        if ask.scaled and was_run:
            scale = f"Scaled variant {ask.scale.name}: {ask.scale.words}."
            sentences.append(f"{scale} Differences from print include the scale.")
        sentences += [f"Set by hand, not the paper's: {text}." for text in ask.set_by_hand]
        if was_run:
            sentences += ask.paper.open
            if ask.rules == "code" and ask.paper.code:
                sentences += [f"Rules of the public code: {text}" for text in ask.paper.code.words]
        return sentences + self._best_of_sweep() + self._notes()

    def _best_of_sweep(self) -> list[str]:
        """Of each method and column, which of the swept settings was best: a grid search, on test samples."""
        tried: dict[tuple[str, str], list[Row]] = {}
        settings: dict[str, str] = {}
        for column in self.ask.columns:
            parts = column.name.split(", ")
            swept = len(list(leaves(column.sweep.values)))
            if not swept or column.measure != "accuracy":
                continue
            settings[column.name] = ", ".join(parts[-swept:])
            for row in (r for r in self.rows if r.column == column.name and r.mean is not None):
                tried.setdefault((row.method, ", ".join(parts[:-swept])), []).append(row)
        best = {key: max(rows, key=lambda row: row.mean or 0) for key, rows in tried.items()}
        return [
            f"Best of the sweep, chosen on test samples: {method}, {column}: {settings[row.column]} ({row.mean:.2f} %)."
            for (method, column), row in best.items()
            if len({other.ours for other in tried[method, column]}) > 1  # else it does not have what was swept
        ]

    def _notes(self) -> list[str]:
        sentences: list[str] = []
        for note in self.ask.table.notes:
            cells = [(r.method, r.column) for r in self.rows if note.applies(r.method, r.column)]
            if cells:
                about = ", ".join(dict.fromkeys(m if note.methods else c for m, c in cells))
                sentences.append(f"{about}: {note.text}")
        return sentences

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows for people, without columns that are empty."""
        rows = [row.texts() for row in self.rows]
        shown = [i for i, _ in enumerate(HEAD) if any(row[i] for row in rows)]
        return [HEAD[i] for i in shown], [[row[i] for i in shown] for row in rows]

    def markdown(self) -> str:
        ask = self.ask
        (head, rows) = self.table()
        lines = [head, ["---"] * len(head), *rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        how = f"Made by `{self.command}`: scale {ask.scale.name}, rules of the {ask.rules}. " if self.command else ""
        how += f"**Set by hand: {', '.join(ask.set_by_hand)}.** " if ask.set_by_hand else ""
        about = f"{how}{_describe_measures(ask)}"
        words = "".join(f"- {text}\n" for text in self.words())
        title = f"# {ask.paper.name}, {ask.table.name}: {ask.table.title}"
        return "\n\n".join([title, f"{ask.paper.citation}.", about, table, words])

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0].to_plain()) if self.rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.to_plain() for row in self.rows)
        return text.getvalue()


def _describe_measures(ask: Ask) -> str:
    which = "over all test samples" if ask.metric == "accuracy" else "as the mean over the clients"
    best = f"the best of the last {ask.window} rounds" if ask.window else "the best round"
    return (
        f"Accuracies are percentages {which} in {best}; *pre* is the model that a client would use after a download, "
        f"*stale* the one from its own last training; *last 4* is the mean of the last four evaluations, for which no "
        f"round was chosen on test samples; the floor is guessing each client's most frequent class."
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


SPREAD = 2
"""how many published standard deviations count as the published spread"""


SMALL = "small scale, order of methods only"
"""fewer rounds on less data say nothing about the distance to a printed number"""
BY_HAND = "other settings than the paper's, order of methods only"


def judge_accuracy(printed: Printed, ours: float, floor: float | None, *, unlike: str = "") -> str:
    """`unlike` is why the distance to the printed number means nothing."""
    below = floor is not None and ours < floor
    as_printed = below and printed.mean is not None and printed.mean < (floor or 0)
    tail = f", below the floor{' as in print' if as_printed else ''}" if below else ""
    if printed.mean is None:
        return f"nothing printed to compare with{tail}"
    return (unlike or _distance(printed, ours)) + tail


def _distance(printed: Printed, ours: float) -> str:
    assert printed.mean is not None
    gap = abs(ours - printed.mean)
    if printed.std is not None and gap <= max(SPREAD * printed.std, printed.last_digit):
        return "within the published spread"
    if gap <= 1:
        return "within 1 point"
    side = "above" if ours > printed.mean else "below"
    spread = f", {gap / printed.std:.0f} published standard deviations" if printed.std else ""
    return f"off: {gap:.2f} points {side}{spread}"


def judge_rounds(printed: Printed, ours: float | None, rounds: int) -> str:
    if ours is None:
        return f"not reached in {rounds} rounds"
    if printed.mean is None:
        return "nothing printed to compare with"
    gap = ours - printed.mean
    if not gap:
        return "the same round"
    return f"{abs(gap):g} rounds {'later' if gap > 0 else 'earlier'}"


def judge_ratio(printed: Printed, ours: float) -> str:
    if printed.mean is None:
        return "nothing printed to compare with"
    share = ours / printed.mean - 1
    if abs(share) <= 0.1:
        return "within a tenth of print"
    return f"{abs(share):.0%} {'above' if share > 0 else 'below'} print"


def judge_exact(printed: Printed, ours: float | str, tolerance: float, agrees: str = "exact") -> str:
    """The verdict on an untrained number: equal to the last printed digit or not. Only our own can be `exact`."""
    if isinstance(ours, str) or printed.mean is None:
        return agrees if ours == printed.text else f"differs: {ours}"
    if abs(ours - printed.mean) <= tolerance + 1e-9:
        return agrees
    return f"differs by {ours - printed.mean:+.2f}"
