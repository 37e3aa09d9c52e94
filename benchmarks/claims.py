"""The pages of docs/results that say whether a paper's claim holds, from the runs behind them.

    python benchmarks/claims.py collect RUNS...   what the pages need of finished runs, in docs/results/claims/runs.json
    python benchmarks/claims.py cost LOG...       CPU seconds of each command, in docs/results/claims/costs.json
    python benchmarks/claims.py pages [NAME...]   from those and docs/results/claims/*.toml, the pages and their table

Nobody types a figure: a page's text names what it wants, such as {diff:FedGMH-Standalone}, and this file fills it in.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.papers.cells import ask_for
from headwise.papers.reproduce import exact_rows
from headwise.papers.results import Row
from headwise.runs.query import Run
from headwise.settings.experiment import Experiment
from headwise.settings.fields import difference

RESULTS = Path(__file__).parent.parent / "docs" / "results"
HOME = RESULTS / "claims"
LAST = 4
"""evaluations at the end of a run whose mean counts: the best round would be chosen on the test samples"""
DRAWS = 4_000
GROUPS = {"small": "from clients with fewer training samples than a batch", "large": "from all others"}
ENDS = {
    "clients": f"Accuracies are means over the last {LAST} evaluations, not the best round.",
    "final": "Accuracies are those of the last round, not the best one.",
}
INTERVALS = (
    "Intervals hold 95 % of a paired bootstrap over clients, and over seeds where there are several. All seeds have "
    "the same clients with the same samples: no interval covers another draw of the partition, and two or three seeds "
    "say little about a fourth."
)
DEFAULTS = Experiment().plain()
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five")
COSTS: dict[str, float] = json.loads((HOME / "costs.json").read_text()) if (HOME / "costs.json").exists() else {}


def cost(logs: Sequence[Path]) -> None:
    """From lines like `09:49:10 START fedgh/3 --methods ...` and `09:57:11 END rc=0 114.0 user 481.0 real`."""
    found, command = dict[str, float](), ""
    for line in (line for log in logs for line in log.read_text().splitlines()):
        _, what, rest = line.split(" ", 2)
        if what == "START":
            command = re.sub(r" --seeds \d+", "", rest)
        elif told := re.search(r"([\d.]+) user", rest):
            found[command] = found.get(command, 0.0) + float(told[1])
    (HOME / "costs.json").write_text(json.dumps(found, indent=1) + "\n")


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
    trained, found = dict[int, float](), dict[str, list[tuple[int, NDArray[np.float64]]]]()
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
                found.setdefault(moment, []).append((t, np.array([scores[c] for c in range(clients)])))
    return found


@dataclass(frozen=True)
class Line:
    """One method of a page: its runs, one per seed."""

    name: str
    runs: list[dict[str, Any]]
    moment: str
    end: str
    """clients: the mean of the last evaluations; final: the last one"""

    def scores(self, seeds: Sequence[int] = ()) -> NDArray[np.float64]:
        """[seeds, clients] accuracies in percent, of these seeds or of all."""
        return 100 * np.array([r[self.end][self.moment] for s, r in self.by_seed.items() if s in (seeds or self.seeds)])

    @property
    def by_seed(self) -> dict[int, dict[str, Any]]:
        """Its runs, in the order of their seeds."""
        return {r["experiment"].get("seed", 0): r for r in self.runs}

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return [*self.by_seed]


def weights(line: Line, page: Mapping[str, Any]) -> NDArray[np.float64]:
    """What a client counts: its test samples, or the same as any other; none outside the group that is asked for."""
    run = line.runs[0]
    n = np.array(run["test"], float)
    return (n > 0).astype(float) if page.get("metric") == "client_mean" else n


@cache
def draws(seeds: int, clients: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[draws, seeds] seeds drawn with replacement, and [draws, clients] how often each client is drawn."""
    rng = np.random.default_rng(0)
    which, who = rng.integers(seeds, size=(DRAWS, seeds)), rng.integers(clients, size=(DRAWS, clients))
    return which, np.stack([np.bincount(row, minlength=clients) for row in who]).astype(float)


def estimate(values: NDArray[np.float64], n: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of [seeds, clients] values, and its 95 % interval by drawing seeds and clients with replacement.

    Values are differences of two methods on the same client and seed where the comparison is a paired one.
    """
    which, times = draws(*values.shape)
    of_seeds = times @ (values * n).T / (times @ n)[:, None]  # [draws, seeds]
    low, high = np.percentile(np.take_along_axis(of_seeds, which, axis=1).mean(1), [2.5, 97.5])
    return float(np.average(values.mean(0), weights=n)), float(low), float(high)


class Page:
    """A claim's page: its text with all figures filled in."""

    def __init__(self, told: Mapping[str, Any], runs: Sequence[dict[str, Any]]) -> None:
        self.told = told
        self.lines = {line.name: line for row in told.get("lines", ()) if (line := _line(row, told, runs)).runs}
        self.exact: list[Row] = []
        if asked := told.get("exact"):
            self.exact = list(exact_rows(ask_for(asked["table"], columns=asked.get("columns", ()))).values())

    @property
    def seeds(self) -> list[int]:
        """How many seeds the lines have, each number once."""
        return sorted({len(line.runs) for line in self.lines.values()})

    @property
    def mean_of(self) -> str:
        """The paper's mean: over all samples, or over the clients."""
        return "mean" if self.told.get("metric") == "client_mean" else "weighted"

    def counted(self) -> str:
        """What was computed instead of trained, beside print."""
        said = ["| | | in print | ours | |", "|---|---|---:|---:|---|"]
        rows = [row.texts() for row in self.exact if not row.printed.missing]
        return "\n".join([*said, *(f"| {t[0]} | {t[1]} | {t[2]} | {t[3]} | {t[-1]} |" for t in rows)])

    def table(self) -> str:
        """Every line: mean and interval, seeds, the floor."""
        said = [
            "| | moment | accuracy % | 95 % interval | seeds | rounds | floor % |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for line in self.lines.values():
            mean, low, high = estimate(line.scores(), weights(line, self.told))
            floor, rounds = 100 * line.runs[0]["floor"][self.mean_of], line.runs[0]["experiment"].get("rounds", 50)
            said.append(
                f"| {line.name} | {line.moment} | {mean:.2f} | {low:.2f} to {high:.2f} | {len(line.runs)} | {rounds} | "
                f"{floor:.2f} |"
            )
        return "\n".join(said)

    def differences(self) -> str:
        """The comparisons that the page asks for, in points."""
        said = ["| difference | points | 95 % interval |", "|---|---:|---:|"]
        for pair in self.told["pairs"]:
            if self._known(pair):
                name, _, group = pair.partition(" @ ")
                name = f"of which {GROUPS[group]}" if group else " less ".join(name.split(" - "))
                said.append(_row(name, self._difference(pair)))
        said += [_row(name, self._difference(*pairs)) for name, pairs in self.told.get("effects", {}).items()]
        return "\n".join(said)

    def fill(self, text: str) -> str:
        """Every {kind:name} by its figure."""
        return re.sub(r"\{(\w+):([^}]*)\}", lambda m: self._figure(m[1], m[2]), text)

    def _figure(self, kind: str, name: str) -> str:
        if kind == "exact":
            given = [row for row in self.exact if not row.printed.missing]
            return f"{sum(row.verdict == 'exact' for row in given)} of {len(given)}"
        if kind in ("diff", "effect"):
            mean, low, high = self._difference(*([name] if kind == "diff" else self.told["effects"][name]))
            return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        if kind == "seeds":
            words = [NUMBERS[n] for n in (self.seeds[0], self.seeds[-1])]
            some = words[0] if words[0] == words[1] else f"{words[0]} to {words[1].lower()}"
            return f"{some} seed{'s' * (some != 'One')}"
        line, _, rest = name.partition("@")
        return self._of_line(kind, self.lines[line], rest)

    def _of_line(self, kind: str, line: Line, name: str) -> str:
        if kind == "acc":
            return f"{estimate(line.scores(), weights(line, self.told))[0]:.1f}"
        if kind == "floor":
            return f"{100 * line.runs[0]['floor'][self.mean_of]:.1f}"
        if kind == "small":
            return str(sum(n < self.told["batch"] for n in line.runs[0]["train"]))
        if kind in ("mean", "most"):  # of a number that each client has learned, at the end of the run
            learned = np.array([r["learned"][name] for r in line.runs])
            return f"{learned.mean() if kind == 'mean' else learned.max():.2f}"
        curves = [[(t, 100 * v) for t, v in r["curves"][line.moment]] for r in line.runs]
        if kind == "reach":  # the first round at this accuracy in every seed, the mean over the seeds
            first = [next((t for t, v in points if v >= float(name)), None) for points in curves]
            return "never" if None in first else f"{np.mean([t for t in first if t is not None]):.0f}"
        if kind == "at":
            return f"{np.mean([dict(points)[int(name)] for points in curves]):.1f}"
        if kind == "best":
            return f"{np.mean([max(v for _, v in points) for points in curves]):.1f}"
        raise SystemExit(f"{{{kind}:...}} is not a figure that this file knows.")

    def _known(self, pair: str) -> bool:
        return all(name in self.lines for name in pair.split(" @ ")[0].split(" - "))

    def _difference(self, *pairs: str) -> tuple[float, float, float]:
        """The paired difference over the seeds that all have, the mean of several; `a - b @ small` is what clients
        below one batch add to it, `@ large` the others."""
        named = [[self.lines[name] for name in pair.partition(" @ ")[0].split(" - ")] for pair in pairs]
        group, lines = pairs[0].partition(" @ ")[2], [line for both in named for line in both]
        seeds = sorted(set.intersection(*({*line.seeds} for line in lines)))
        if len({r["partition"] for line in lines for r in line.runs}) > 1:
            raise SystemExit(f"{pairs[0]}: these runs have different clients.")
        values = np.mean([a.scores(seeds) - b.scores(seeds) for a, b in named], axis=0)
        if group:
            small = np.array(lines[0].runs[0]["train"]) < self.told["batch"]
            values = np.where(small if group == "small" else ~small, values, 0.0)
        return estimate(values, weights(lines[0], self.told))

    def markdown(self) -> str:
        """The page."""
        told = self.told
        seeds = f" --seeds {self.seeds[-1]}" if self.lines and self.seeds[-1] > 1 else ""
        commands = [f"headwise reproduce {c}{seeds}" + _cost(c) for c in told["commands"]]
        parts = [
            f"# {told['title']}",
            f"**{told['verdict'][0].upper()}{told['verdict'][1:]}.** {self.fill(told['because'])}",
            f"Claim: {told['claim']} ({told['source']}). In print: {told['printed']}.",
            "```sh\n" + "\n".join(commands) + "\n```" if commands else "",
            f"Scale: {told['scale']} {ENDS[told.get('end', 'clients')]} {INTERVALS}" if self.lines else "",
            f"Chosen after looking: {told['looked']}" if "looked" in told else "",
            self.table() if self.lines else "",
            self.differences() if told.get("pairs") else "",
            self.counted() if self.exact else "",
            self.fill(told.get("text", "")).strip(),
            "This page is written by `python benchmarks/claims.py pages` from `docs/results/claims/`.",
        ]
        return "\n\n".join(p for p in parts if p) + "\n"


def _row(name: str, estimated: tuple[float, float, float]) -> str:
    mean, low, high = estimated
    return f"| {name} | {mean:+.2f} | {low:+.2f} to {high:+.2f} |"


def _cost(command: str) -> str:
    return f"   # {COSTS[command]:.0f} CPU seconds" if command in COSTS else ""


def _line(row: Mapping[str, Any], told: Mapping[str, Any], runs: Sequence[dict[str, Any]]) -> Line:
    wanted = {**told.get("match", {}), **row["match"]}
    fit = [r for r in runs if all(_at(r["experiment"], k) == (v if v != "unset" else None) for k, v in wanted.items())]
    fit.sort(key=lambda r: r["experiment"].get("seed", 0))
    seeds = [r["experiment"].get("seed", 0) for r in fit]
    if len({*seeds}) < len(seeds):
        raise SystemExit(f"{told['title']}: {row['name']} fits several runs of one seed: {[r['run'] for r in fit]}.")
    if len({r["partition"] for r in fit}) > 1:  # the bootstrap draws a client with all of its seeds
        raise SystemExit(f"{told['title']}: {row['name']} has other clients in other seeds.")
    return Line(row["name"], fit, row.get("moment", told.get("moment", "pre")), told.get("end", "clients"))


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


def pages(names: Sequence[str]) -> None:
    """Write these pages, or all, and their rows in the table of claims at the top of README.md."""
    runs, readme = json.loads((HOME / "runs.json").read_text()), RESULTS / "README.md"
    begin, end = "<!-- claims -->\n", "<!-- end of claims -->"
    before, rest = readme.read_text().split(begin)
    known = {m[1]: m[0] for m in re.finditer(r"\| \[[^\]]*\]\(claim-([\w-]+)\.md\).*", rest.split(end)[0])}
    rows = ["| claim | in print | ours | seeds | verdict |", "|---|---|---|---|---|"]
    for told in (t for file in sorted(HOME.glob("*.toml")) for t in tomllib.loads(file.read_text())["pages"]):
        name = told["name"]
        if not names or name in names:
            page = Page(told, runs)
            (RESULTS / f"claim-{name}.md").write_text(page.markdown())
            ours, seeds = page.fill(told["ours"]), " to ".join(map(str, page.seeds[:1] + page.seeds[1:][-1:]))
            known[name] = (
                f"| [{told['short']}](claim-{name}.md) | {told['printed']} | {ours} | {seeds} | *{told['verdict']}* |"
            )
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
