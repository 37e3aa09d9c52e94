"""The pages of docs/results that say whether a paper's claim holds, from the runs behind them.

    python benchmarks/claims.py collect RUNS...   what the pages need of finished runs, in docs/results/claims/runs.json
    python benchmarks/claims.py cost LOG...       CPU seconds of each command, in docs/results/claims/costs.json
    python benchmarks/claims.py pages [NAME...]   from those, claims/cells and claims/*.toml, the pages and their table

Nobody types a figure: a page's text names what it wants, such as {diff:FedGMH-Standalone}, and this file fills it in.
A page with `decides`, a list of differences that must all be above 0, gets its verdict from them, under the condition
`given`; one with `like` takes what it does not say from another page of its file. A page of printed.toml is written as
soon as the cells of its lines are there (those with `optional` may be missing), in the place of a small-scale page of
the same name.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.papers.cells import ask_for
from headwise.papers.reproduce import LAST, exact_rows
from headwise.papers.results import Row
from headwise.report.figures import FORMATS, PALETTE, STYLE
from headwise.runs.query import Run
from headwise.settings.experiment import Experiment
from headwise.settings.fields import difference
from headwise.stats import Cells, Interval

RESULTS = Path(__file__).parent.parent / "docs" / "results"
HOME = RESULTS / "claims"
LATE = 20
"""evaluations at the end that {late:...} averages, where every round is measured"""
GROUPS = {
    "small": "of which from clients with fewer training samples than a batch",
    "large": "of which from all others",
    "clients": "as a mean over clients, however many samples they have",
    "samples": "over all test samples",
}
ENDS = {
    "clients": f"Accuracies are means over the last {LAST} evaluations, as in the column *last {LAST}* of the tables "
    "that these commands make, not the best round, which papers print.",
    "final": "Accuracies are those of the last round, not the best one.",
}
INTERVALS = (
    "Intervals are paired and cover 95 %: over draws of the partition where there are several, else over the clients "
    "and seeds of one draw, which says nothing about another draw."
)
DEFAULTS = Experiment().to_plain()
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five")
COSTS: dict[str, float] = json.loads((HOME / "costs.json").read_text()) if (HOME / "costs.json").exists() else {}


def cost(logs: Sequence[Path]) -> None:
    """From lines like `09:49:10 START fedgh/3 --methods ...` and `09:57:11 END rc=0 114.0 user 481.0 real`."""
    seconds = dict[str, float]()
    command = ""
    for line in (line for log in logs for line in log.read_text().splitlines()):
        _, what, rest = line.split(" ", 2)
        if what == "START":
            command = re.sub(r" --seeds \d+", "", rest)
        elif match := re.search(r"([\d.]+) user", rest):
            seconds[command] = seconds.get(command, 0.0) + float(match[1])
    (HOME / "costs.json").write_text(json.dumps(seconds, indent=1) + "\n")


def collect(folders: Sequence[Path]) -> None:
    """Add these runs to runs.json, in the place of the same ones that are there."""
    file = HOME / "runs.json"
    known = {r["run"]: r for r in json.loads(file.read_text())} if file.exists() else {}
    for folder in folders:
        if (folder / "result.json").exists() and Run(folder).complete:
            known[folder.name] = summary(Run(folder))
    lines = ",\n".join(json.dumps(known[k]) for k in sorted(known))
    file.write_text(f"[\n{lines}\n]\n")


def summary(run: Run) -> dict[str, Any]:
    """Each client's accuracy at the end, the curves, and what was run."""
    experiment = run.manifest["experiment"]
    plain = difference(experiment, DEFAULTS)
    scores = trace(run, experiment["clients"])
    n = [sum(row) for row in run.partition["test"]]
    curves = {m: [[t, round(float(np.average(v, weights=n)), 4)] for t, v in points] for m, points in scores.items()}
    ends = {m: np.mean([v for _, v in points[-LAST:]], axis=0).round(4).tolist() for m, points in scores.items()}
    shown = run.diagnostics[-1]["quantities"] if run.diagnostics else {}
    final = {m: points[-1][1].round(4).tolist() for m, points in scores.items()}
    return {
        "run": run.path.name,
        "experiment": {k: v for k, v in plain.items() if k != "engine"},
        "partition": run.manifest["partition"]["hash"],
        "floor": run.manifest["partition"]["floor"],
        "train": [sum(row) for row in run.partition["train"]],
        "test": n,
        "clients": ends,
        "final": final,
        "curves": curves,
        "learned": {k: v["values"] for k, v in shown.items() if v["axes"] == ["client"]},
    }


def trace(run: Run, clients: int) -> dict[str, list[tuple[int, NDArray[np.float64]]]]:
    """[clients] accuracies by moment, at each evaluation; stale is what a client had after its own last training."""
    rows: dict[int, list[Any]] = {}
    for row in run.clients:
        if row["round"] == 0:  # before any training
            continue
        rows.setdefault(row["round"], []).append(row)
    evaluated = {row["round"] for row in run.rounds if "stale" in row}
    trained = dict[int, float]()
    scores_by_moment = dict[str, list[tuple[int, NDArray[np.float64]]]]()
    for t, lines in sorted(rows.items()):
        now: dict[str, dict[int, float]] = {}
        for line in lines:
            for moment in ("pre", "post", "global"):
                if score := line.get(moment, {}).get("test"):
                    now.setdefault(moment, {})[line["client"]] = score["accuracy"]
        trained |= now.get("post", {})
        if t in evaluated:
            now["stale"] = now.get("pre", {}) | trained  # who never trained has its score before training
        for moment, scores in now.items():
            if len(scores) == clients and moment != "post":
                scores_by_moment.setdefault(moment, []).append((t, np.array([scores[c] for c in range(clients)])))
    return scores_by_moment


Cell = tuple[int, int]
"""a draw of the partition, and a seed"""


@dataclass(frozen=True)
class Line:
    """One method of a page: its runs, one per draw and seed."""

    name: str
    by_cell: dict[Cell, dict[str, Any]]
    moment: str
    end: str
    """clients: the mean of the last evaluations; final: the last one"""

    @property
    def runs(self) -> list[dict[str, Any]]:
        return [*self.by_cell.values()]


def common_cells(lines: Sequence[Line]) -> list[list[dict[str, dict[str, Any]]]]:
    """[draws][seeds] runs by line, as many seeds of each draw as all lines have of all draws."""
    cells = [cell for cell in lines[0].by_cell if all(cell in line.by_cell for line in lines)]
    draws = [[cell for cell in cells if cell[0] == draw] for draw in dict.fromkeys(draw for draw, _ in cells)]
    seeds = min(map(len, draws), default=0)
    rows = [[{line.name: line.by_cell[cell] for line in lines} for cell in draw[:seeds]] for draw in draws]
    if any(len({run["partition"] for cell in row for run in cell.values()}) > 1 for row in rows):
        raise SystemExit(f"{', '.join(line.name for line in lines)}: these runs have different clients in one draw.")
    return rows


def estimate(values: NDArray[np.float64], weights: NDArray[np.float64]) -> Interval:
    """The mean of [draws, seeds, clients] values, weighted by [draws, clients]."""
    return Cells({"value": values}, weights).mean("value")


class Page:
    """A claim's page: its text with all figures filled in."""

    def __init__(self, claim: Mapping[str, Any], runs: Sequence[dict[str, Any]]) -> None:
        self.claim = claim
        rows: Sequence[Mapping[str, Any]] = claim.get("lines", ())
        lines = [_line(row, claim, runs) for row in rows]
        firm = [line for row, line in zip(rows, lines, strict=True) if line.runs and not row.get("optional")]
        draws = set.intersection(*({draw for draw, _ in line.by_cell} for line in firm)) if firm else set[int]()
        for line in firm if draws else ():  # a draw counts when all lines have it
            for cell in [cell for cell in line.by_cell if cell[0] not in draws]:
                del line.by_cell[cell]
        self.lines = {line.name: line for line in lines if line.runs}

    @cached_property
    def exact(self) -> list[Row]:
        """What is computed instead of trained."""
        if table := self.claim.get("exact"):
            return list(exact_rows(ask_for(table["table"], columns=table.get("columns", ()))).values())
        return []

    @property
    def end(self) -> str:
        return self.claim.get("end", "clients")

    def spans(self) -> list[str]:
        """Which rounds count, in a sentence, if they are not the same for all runs of one length."""
        names: dict[tuple[int, ...], list[str]] = {}
        for line in self.lines.values() if self.end == "clients" else ():
            ends = tuple(t for t, _ in line.runs[0]["curves"][line.moment][-LAST:])
            names.setdefault(ends, []).append(line.name)
        spans = [f"{ends[0]} to {ends[-1]} of {', '.join(f'*{n}*' for n in lines)}" for ends, lines in names.items()]
        return [f"These are rounds {'; '.join(spans)}."] if len(spans) > len({ends[-1] for ends in names}) else []

    @property
    def seeds(self) -> list[int]:
        """How many seeds the lines have, each number once."""
        return sorted({len({seed for _, seed in line.by_cell}) for line in self.lines.values()})

    @property
    def mean_of(self) -> str:
        """The paper's mean: over all samples, or over the clients."""
        return "mean" if self.claim.get("metric") == "client_mean" else "weighted"

    def count(self) -> str:
        """What was computed instead of trained, beside print."""
        lines = ["| | | in print | ours | |", "|---|---|---:|---:|---|"]
        rows = [row.texts() for row in self.exact if not row.printed.missing]
        return "\n".join([*lines, *(f"| {t[0]} | {t[1]} | {t[2]} | {t[3]} | {t[-1]} |" for t in rows)])

    def table(self) -> str:
        """Every line: mean and interval, seeds, the floor."""
        lines = [
            "| | moment | accuracy % | 95 % interval | seeds | rounds | floor % |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for line in self.lines.values():
            mean, low, high = self._mean(line)
            floor = 100 * line.runs[0]["floor"][self.mean_of]
            rounds = line.runs[0]["experiment"].get("rounds", 50)
            lines.append(
                f"| {line.name} | {line.moment} | {mean:.2f} | {low:.2f} to {high:.2f} | {len(line.runs)} | {rounds} | "
                f"{floor:.2f} |"
            )
        return "\n".join(lines)

    def differences(self) -> str:
        """The comparisons that the page asks for, in points."""
        lines = ["| difference | points | 95 % interval |", "|---|---:|---:|"]
        for pair in self.claim["pairs"]:
            if self._has_runs(pair):
                name, _, group = pair.partition(" @ ")
                name = GROUPS[group] if group else " minus ".join(name.split(" - "))
                lines.append(_row(name, self._difference(pair)))
        lines += [_row(name, self._difference(*pairs)) for name, pairs in self.claim.get("effects", {}).items()]
        return "\n".join(lines)

    @property
    def hours(self) -> str:
        """CPU hours of its runs, where the queue measured them."""
        seconds = {r["run"]: r["cpu_seconds"] for line in self.lines.values() for r in line.runs if "cpu_seconds" in r}
        return f"{sum(seconds.values()) / 3600:.1f}" if seconds else ""

    @property
    def learned(self) -> dict[str, dict[int, list[tuple[int, float]]]]:
        """Of the lines in the page's figure: by client, rounds and values of a number that each client learns."""
        wish = self.claim.get("learned", {})
        curves = {name: read_learned(self.lines[name].runs[0], wish["quantity"]) for name in wish.get("lines", ())
                 if name in self.lines}  # fmt: skip
        return {name: clients for name, clients in curves.items() if clients}

    def draw_learned(self, path: Path) -> None:
        """One panel for each line of the page's figure, one curve for each client."""
        import matplotlib
        from matplotlib.figure import Figure

        panels = self.learned
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(3.2 * len(panels), 2.8), layout="constrained")
            for axes, (name, clients) in zip(
                figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
            ):
                for points in clients.values():
                    axes.plot(
                        [t for t, _ in points], [v for _, v in points], color=PALETTE[0], alpha=0.5, linewidth=0.9
                    )
                axes.set_title(name, fontsize=9)
                axes.set_xlabel("round")
            figure.axes[0].set_ylabel(self.claim["learned"]["title"])
            figure.savefig(path, format="svg", metadata=FORMATS["svg"])

    def fill(self, text: str) -> str:
        """Every {kind:name} by its figure."""
        return re.sub(r"\{(\w+):([^}]*)\}", lambda m: self._figure(m[1], m[2]), text)

    def _figure(self, kind: str, name: str) -> str:
        if kind == "exact":
            given = [row for row in self.exact if not row.printed.missing]
            return f"{sum(row.verdict == 'exact' for row in given)} of {len(given)}"
        if kind in ("diff", "effect"):
            mean, low, high = self._difference(*([name] if kind == "diff" else self.claim["effects"][name]))
            near = any(0 < abs(end) < 0.05 for end in (low, high))
            digits = 2 if near else 1  # which side of zero an end is on decides
            return f"{_signed(mean, digits)} ({_signed(low, digits)} to {_signed(high, digits)})"
        if kind == "seeds":
            words = [NUMBERS[n] for n in (self.seeds[0], self.seeds[-1])]
            some = words[0] if words[0] == words[1] else f"{words[0]} to {words[1].lower()}"
            return f"{some} seed{'s' * (some != 'One')}"
        line, _, rest = name.partition("@")
        return self._of_line(kind, self.lines[line], rest)

    def _of_line(self, kind: str, line: Line, name: str) -> str:
        if kind == "acc":
            return f"{self._mean(line).value:.1f}"
        if kind == "floor":
            return f"{100 * line.runs[0]['floor'][self.mean_of]:.1f}"
        if kind == "small":
            return str(sum(n < self.claim["batch"] for n in line.runs[0]["train"]))
        if kind in ("mean", "most"):  # of a number that each client has learned, at the end of the run
            learned = np.array([r["learned"][name] for r in line.runs])
            return f"{learned.mean() if kind == 'mean' else learned.max():.2f}"
        if kind == "within":  # of the clients of one group
            return f"{self._within(line, name):.1f}"
        column = "client_mean" if kind == "reach_clients" or self.mean_of == "mean" else "accuracy"
        curves = [read_curve(r, line.moment, column) for r in line.runs]
        if kind == "late":
            return f"{np.mean([np.mean([v for _, v in points[-LATE:]]) for points in curves]):.1f}"
        if kind in ("reach", "reach_clients"):
            # the first round at this accuracy in every seed, the mean over the seeds
            first = [next((t for t, v in points if v >= float(name)), None) for points in curves]
            return "never" if None in first else f"{np.mean([t for t in first if t is not None]):.0f}"
        if kind == "at":
            return f"{np.mean([dict(points)[int(name)] for points in curves]):.1f}"
        if kind == "best":
            return f"{np.mean([max(v for _, v in points) for points in curves]):.1f}"
        raise SystemExit(f"{{{kind}:...}} is not a figure that this file knows.")

    def _within(self, line: Line, group: str) -> float:
        """The accuracy on the test samples of the clients below one batch, or of the others, in %."""
        rows = common_cells([line])
        weights = np.where(self._members(rows, group), self._weights(rows), 0.0)
        scores = np.array([np.mean([_scores(cell[line.name], line) for cell in row], axis=0) for row in rows])
        return float(np.average(scores, weights=weights))

    def _members(self, rows: list[list[dict[str, dict[str, Any]]]], group: str) -> NDArray[np.bool_]:
        """[draws, clients]: who is of this group."""
        small = np.array([_any(row)["train"] for row in rows]) < self.claim["batch"]
        return small if group == "small" else ~small

    def _has_runs(self, pair: str) -> bool:
        return all(name in self.lines for name in pair.split(" @ ")[0].split(" - "))

    def _mean(self, line: Line) -> Interval:
        rows = common_cells([line])
        values = [[_scores(cell[line.name], line) for cell in row] for row in rows]
        return estimate(np.array(values), self._weights(rows))

    def _difference(self, *pairs: str) -> Interval:
        """The paired difference over the cells that all have, the mean of several; `a - b @ small` is what clients
        below one batch add to it, `@ large` the others; `@ clients` and `@ samples` say what counts the same."""
        named = [[self.lines[name] for name in pair.partition(" @ ")[0].split(" - ")] for pair in pairs]
        rows = common_cells([line for both in named for line in both])
        values = np.array([
            [np.mean([_scores(cell[a.name], a) - _scores(cell[b.name], b) for a, b in named], axis=0) for cell in row]
            for row in rows
        ])  # fmt: skip
        group = pairs[0].partition(" @ ")[2]
        if group in ("small", "large"):
            values = np.where(self._members(rows, group)[:, None], values, 0.0)
        return estimate(values, self._weights(rows, group))

    def _weights(self, rows: list[list[dict[str, dict[str, Any]]]], what: str = "") -> NDArray[np.float64]:
        """[draws, clients]: a client's test samples, or the same for all that have any."""
        samples = np.array([_any(row)["test"] for row in rows], float)
        by_client = what == "clients" or (what != "samples" and self.claim.get("metric") == "client_mean")
        return (samples > 0).astype(float) if by_client else samples

    @property
    def verdict(self) -> str:
        """As the page says, or by the differences that decide: one draw can't show that a claim does not hold."""
        if "decides" not in self.claim:
            return self.claim["verdict"]
        pairs = [pair for pair in self.claim["decides"] if self._has_runs(pair)]
        draws = max(len(common_cells([line])) for line in self.lines.values())
        scope = f"({NUMBERS[draws].lower()} draw{'s' * (draws > 1)}{self.claim.get('scope', '')})"
        above = [pair for pair in pairs if self._difference(pair).low > 0]
        if not above:
            return f"not seen here {scope}"
        conditions = [self.claim["given"]] if "given" in self.claim else []
        if len(above) < len(pairs):
            conditions += [f"compared with {' and '.join(pair.split(' - ')[1] for pair in above)} only"]
        return f"holds {' '.join(['if', ' and '.join(conditions), scope] if conditions else [scope])}"

    def markdown(self) -> str:
        """The page."""
        claim = self.claim
        seeds = f" --seeds {self.seeds[-1]}" if self.lines and self.seeds[-1] > 1 else ""
        commands = [f"headwise reproduce {c}{seeds}" + _cost(c) for c in claim["commands"]]
        parts = [
            f"# {claim['title']}",
            f"**{self.verdict[0].upper()}{self.verdict[1:]}.** {self.fill(claim['because'])}",
            f"Claim: {claim['claim']} ({claim['source']}). In print: {claim['printed']}.",
            "```sh\n" + "\n".join(commands) + "\n```" if commands else "",
            " ".join([f"Scale: {claim['scale']}", ENDS[self.end], *self.spans(), INTERVALS]) if self.lines else "",
            f"Chosen after looking: {claim['looked']}" if "looked" in claim else "",
            self.table() if self.lines else "",
            self.differences() if claim.get("pairs") else "",
            f"![{claim['learned']['title']}](claim-{claim['name']}.svg)" if self.learned else "",
            self.count() if self.exact else "",
            self.fill(claim.get("text", "")).strip(),
            "This page is written by `python benchmarks/claims.py pages` from `docs/results/claims/`.",
        ]
        return "\n\n".join(p for p in parts if p) + "\n"


def _scores(run: dict[str, Any], line: Line) -> NDArray[np.float64]:
    """[clients] accuracies in percent."""
    return 100 * np.array(run[line.end][line.moment])


def _any(row: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """One of a draw's runs, for what all of them share."""
    return next(iter(row[0].values()))


def _row(name: str, estimated: Interval) -> str:
    mean, low, high = (_signed(value, 2) for value in estimated)
    return f"| {name} | {mean} | {low} to {high} |"


def _signed(value: float, digits: int) -> str:
    """With its sign; zero is never below zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _cost(command: str) -> str:
    return f"   # {COSTS[command]:.0f} CPU seconds" if command in COSTS else ""


def _line(row: Mapping[str, Any], claim: Mapping[str, Any], runs: Sequence[dict[str, Any]]) -> Line:
    settings = {**claim.get("match", {}), **row["match"]}
    fit = [
        r for r in runs if all(_at(r["experiment"], k) == (v if v != "unset" else None) for k, v in settings.items())
    ]
    by_cell = {_cell(r): r for r in sorted(fit, key=_cell)}
    if len(by_cell) < len(fit):
        raise SystemExit(f"{claim['title']}: {row['name']} fits several runs of one seed: {[r['run'] for r in fit]}.")
    return Line(row["name"], by_cell, row.get("moment", claim.get("moment", "pre")), claim.get("end", "clients"))


def _cell(run: dict[str, Any]) -> Cell:
    return run["experiment"].get("data_seed", 0), run["experiment"].get("seed", 0)


def _at(tree: Mapping[str, Any], path: str) -> Any:
    """A setting, or its default where the run has not changed it."""
    for whole in (tree, DEFAULTS):
        value: Any = whole
        for key in path.split("."):
            value = (
                value[int(key)] if isinstance(value, list) else value.get(key) if isinstance(value, Mapping) else None
            )
            if value is None:
                break
        if value is not None:
            return value
    return None


def read_curve(run: Mapping[str, Any], moment: str, column: str) -> list[tuple[int, float]]:
    """Rounds and accuracies in %; runs of before the queue only have those over all samples."""
    file = HOME / "cells" / f"{run['run']}.csv"
    if not file.exists():
        return [(t, 100 * v) for t, v in run["curves"][moment]]
    rows = csv.DictReader(file.read_text().splitlines())
    return [(int(row["round"]), 100 * float(row[column])) for row in rows if row["moment"] == moment]


def read_learned(run: Mapping[str, Any], quantity: str) -> dict[int, list[tuple[int, float]]]:
    """By client: rounds and values; nothing if the cell has no such file."""
    file = HOME / "cells" / f"{run['run']}.learned.csv"
    clients: dict[int, list[tuple[int, float]]] = {}
    for row in csv.DictReader(file.read_text().splitlines()) if file.exists() else ():
        if row["quantity"] == quantity:
            clients.setdefault(int(row["client"]), []).append((int(row["round"]), float(row["value"])))
    return clients


def read_runs() -> list[dict[str, Any]]:
    """The small runs, and the finished cells of the queue."""
    cells = [json.loads(file.read_text()) for file in sorted((HOME / "cells").glob("*.json"))]
    return [*json.loads((HOME / "runs.json").read_text()), *cells]


def choose_pages(runs: Sequence[dict[str, Any]]) -> list[Page]:
    """One page per name: at the printed scale if the cells of all its lines are there, else small."""
    chosen: dict[str, Page] = {}
    for file in sorted(HOME.glob("*.toml")):  # printed.toml comes last
        claims = {claim["name"]: claim for claim in tomllib.loads(file.read_text())["pages"]}
        for claim in claims.values():
            page = Page({**claims[claim["like"]], **claim} if "like" in claim else claim, runs)
            needed = [row["name"] for row in page.claim.get("lines", ()) if not row.get("optional")]
            lacks = [name for name in needed if name not in page.lines]
            if file.name == "printed.toml" and lacks:
                print(f"{claim['name']} waits for {', '.join(lacks)}")
            else:
                chosen[claim["name"]] = page
    return list(chosen.values())


def pages(names: Sequence[str]) -> None:
    """Write these pages, or all, and their rows in the table of claims at the top of README.md."""
    runs = read_runs()
    readme = RESULTS / "README.md"
    begin = "<!-- claims -->\n"
    end = "<!-- end of claims -->"
    before, rest = readme.read_text().split(begin)
    known = {m[1]: m[0] for m in re.finditer(r"\| \[[^\]]*\]\(claim-([\w-]+)\.md\).*", rest.split(end)[0])}
    rows = ["| claim | in print | ours | seeds | CPU hours | verdict |", "|---|---|---|---|---|---|"]
    for page in choose_pages(runs):
        claim = page.claim
        name = claim["name"]
        if not names or name in names:
            (RESULTS / f"claim-{name}.md").write_text(page.markdown())
            if page.learned:
                page.draw_learned(RESULTS / f"claim-{name}.svg")
            ours = page.fill(claim["ours"])
            seeds = " to ".join(map(str, page.seeds[:1] + page.seeds[1:][-1:]))
            cells = [
                f"[{claim['short']}](claim-{name}.md)",
                claim["printed"],
                ours,
                seeds,
                page.hours,
                f"*{page.verdict}*",
            ]
            known[name] = f"| {' | '.join(cells)} |"
        rows += [known[name]] if name in known else []
    readme.write_text(before + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"] and len(sys.argv) > 2:
        collect([Path(p) for p in sys.argv[2:]])
    elif sys.argv[1:2] == ["cost"] and len(sys.argv) > 2:
        cost([Path(p) for p in sys.argv[2:]])
    elif sys.argv[1:2] == ["pages"]:
        pages(sys.argv[2:])
    else:
        raise SystemExit(__doc__)
