"""A demo that convinces: the search for its federation, and how often what it prints is true.

    python benchmarks/demo.py search OUT      every federation of the grid, best first; writes OUT/search.md
    python benchmarks/demo.py draws OUT       the demo on ten other draws; writes OUT/draws.md
    python benchmarks/demo.py page OUT        both, as docs/results/demo.md

**The rule**, written before the search ran, but for the one change below. The personal method is FedAH, fixed
beforehand. A federation qualifies if in each of the three draws of the search (a draw has its own data, partition and
seed, none of which the demo uses)

1. FedAH is at least 3 points better than local training and than FedAvg, by accuracy over all test samples (pre);
2. FedAvg is less than 1 point better than local training: a global model does not help.

Of those that qualify, the demo gets the one whose smallest lead (over draws and rivals) is largest. Rate and
network are the same for all. Called again with the same OUT, it skips what is done.

What changed later, and when. The grid had 39 cells, and was cut to 12 for want of time before any result was seen.
After two cells, the search began to skip the rest of a cell after the first draw that breaks the rule. After ten, of
which none qualified, skews of 0.6 and 0.8 were added; after twelve, one cell with twice the rounds: the one in which
FedAvg was worse than local training and FedAH's lead was second largest, and in which an earlier trial of 40 rounds saw
a lead of 4.0 points. Rule 2 required "worse than local training" until 14 cells had failed, this one with FedAvg 0.2
points above local training in the first draw; FedAH had not been run there yet. It led by 3.7 points, and in the second
draw FedAvg was 2.7 points above local training. The rule was not relaxed a second time: no cell meets it. That cell was
then tested on ten other draws for what a reader of the demo sees, whether FedAH leads both by more than the spread, and
became the demo. It does not show that a global model is worse than local training: often it is better. Nor does it show
that FedAH is the best method: the global model, fine-tuned by each client before use (FedAvg-FT; FedAvg at the moment
stale), is about as good.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import headwise as hw
from headwise.app.launch import run_or_resume
from headwise.settings.experiment import experiment_from

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "examples" / "demo.toml"
PAGE = ROOT / "docs" / "results" / "demo.md"
METHODS = ("standalone", "fedavg", "fedah")
LEAD = 0.03
SLACK = 0.01
LATER = (0.6, 0.8)
LONGER = 60
"""skews of features, and rounds, that joined the grid after others had been measured, of which none qualified"""
SEARCHED = range(100, 103)
DRAWS = range(10, 20)
SEEDS = 3
OTHERWISE: dict[str, dict[str, Any]] = {
    "--partition iid": {"partition": "iid"},
    "--data synthetic:samples=10000": {"data": "synthetic:samples=10000"},
}
"""what should turn it around"""


@dataclasses.dataclass(frozen=True)
class Federation:
    """One cell of the grid."""

    data: str
    partition: str
    clients: int
    rounds: int = 30

    def experiment(self, draw: int) -> hw.Experiment:
        """This federation with data, partition and seed of a draw."""
        drawn = f":seed={draw}" if self.data.startswith("synthetic") else ""
        plain = {"data": self.data + drawn, "partition": self.partition, "clients": self.clients, "rounds": self.rounds}
        quiet = {"evaluate": {"every": self.rounds, "start": False}, "engine": {"workers": 1}}
        return experiment_from({**plain, "train": {"lr": 0.1}, "seed": draw, "data_seed": draw, **quiet})

    def __str__(self) -> str:
        longer = f", {self.rounds} rounds" if self.rounds != 30 else ""
        return f"{self.data}, {self.partition}, {self.clients} clients{longer}"


def grid() -> Iterator[Federation]:
    yield Federation("synthetic:samples=2000", "dirichlet:0.3", 40, LONGER)
    for clients, partition in itertools.product((40, 60), ("dirichlet:0.1", "dirichlet:0.3")):
        yield Federation("digits", partition, clients)
    for partition in ("dirichlet:0.1", "dirichlet:0.3"):
        yield Federation("synthetic:samples=2000", partition, 40)
    # sites with their own labels (Dirichlet 0.5), sizes and features
    sizes = itertools.product(((1000, 20), (2000, 40), (4000, 40)), (0.2, 0.4, *LATER))
    for (samples, sites), skew in sizes:
        if samples == 4000 and skew in LATER:  # not measured for want of time
            continue
        yield Federation(f"synthetic:samples={samples}:sites={sites}:feature_skew={skew}", "natural", sites)


def scores(federation: Federation, out: Path) -> list[dict[str, float]]:
    """Accuracy by method for each draw, until one breaks the rule; FedAH is not run where FedAvg already does."""
    scores_by_draw: list[dict[str, float]] = []
    for draw in SEARCHED:
        experiment = federation.experiment(draw)
        name = re.sub(r"\W+", "-", f"{federation} {draw}")
        scores_by_draw.append({})
        for m in METHODS:
            cell = dataclasses.replace(experiment, method=m)
            scores_by_draw[-1][m] = run_or_resume(cell, out / f"{name}-{m}").accuracy()
            if m == "fedavg" and fails_rule_2(scores_by_draw[-1]):
                return scores_by_draw
        if smallest_lead(scores_by_draw) < LEAD:
            return scores_by_draw
    return scores_by_draw


def fails_rule_2(draw: dict[str, float]) -> bool:
    return draw["fedavg"] >= draw["standalone"] + SLACK


def smallest_lead(by_draw: list[dict[str, float]]) -> float:
    return min(draw["fedah"] - max(draw["standalone"], draw["fedavg"]) for draw in by_draw)


def verdict(by_draw: list[dict[str, float]]) -> str:
    if fails_rule_2(by_draw[-1]):
        return f"no: FedAvg beats local training in draw {len(by_draw)}"
    lead = 100 * smallest_lead(by_draw)
    return f"yes: {lead:+.1f}" if lead >= 100 * LEAD else f"no: {lead:+.1f} in draw {len(by_draw)}"


def search(out: Path) -> str:
    rows: dict[str, float] = {}
    for federation in grid():
        by_draw = scores(federation, out / "search")
        last = [f"{100 * by_draw[-1][m]:.1f}" if m in by_draw[-1] else "" for m in METHODS]
        row = f"| {federation} | {' | '.join(last)} | {verdict(by_draw)} |"
        rows[row] = -smallest_lead(by_draw) if verdict(by_draw).startswith("yes") else 1.0
        print(row, flush=True)
    head = [
        "| federation | local training | FedAvg | FedAH | qualifies, smallest lead |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    return "\n".join([*head, *sorted(rows, key=lambda row: rows[row])])


def draws(out: Path) -> str:
    """As `make demo` runs it, but on data, partitions and seeds that the search has not seen."""
    counts: Counter[str] = Counter()
    rows: list[str] = []
    for draw in DRAWS:
        base = with_draw(demo(), draw)
        comparison = hw.compare(base, METHODS, SEEDS, out / "draws" / str(draw))
        counts.update(without_numbers(comparison.words()))
        cells = [
            f"{100 * line.score:.1f} ± {100 * line.spread('last', line.moment):.1f}"
            for line in comparison.setting.lines
        ]
        rows.append(f"| {draw} | {' | '.join(cells)} |")
        print(rows[-1], comparison.words(), flush=True)
    rows_of_sentences = [f"| {text} | {times} |" for text, times in counts.most_common()]
    head = ["| it prints | draws of ten |", "| --- | ---: |"]
    parts = [
        *head,
        *rows_of_sentences,
        "",
        "| draw | local training | FedAvg | FedAH |",
        "| --- | ---: | ---: | ---: |",
        *rows,
    ]
    return "\n".join([*parts, "", *otherwise(out)])


def otherwise(out: Path) -> list[str]:
    """What should turn it around: with one seed for each of three draws, how often FedAH still leads by 3 points."""
    head = "| changed | local training | FedAvg | FedAH | FedAH leads by 3 points or more |"
    rows = [head, "| --- | ---: | ---: | ---: | ---: |"]
    for k, (name, change) in enumerate(OTHERWISE.items()):
        by_draw: list[dict[str, float]] = []
        for draw in DRAWS[:3]:
            lines = hw.compare(
                with_draw(demo(change), draw), METHODS, 1, out / "otherwise" / f"{k}-{draw}"
            ).setting.lines
            by_draw.append({line.name: line.score for line in lines})
        means = " | ".join(f"{100 * fmean(draw[m] for draw in by_draw):.1f}" for m in METHODS)
        ahead = sum(smallest_lead([draw]) >= LEAD for draw in by_draw)
        rows.append(f"| `{name}` | {means} | {ahead} of {len(by_draw)} |")
        print(rows[-1], flush=True)
    return rows


def demo(change: dict[str, Any] | None = None) -> hw.Experiment:
    return experiment_from({**tomllib.loads(DEMO.read_text(encoding="utf-8")), **(change or {})})


def with_draw(base: hw.Experiment, draw: int) -> hw.Experiment:
    """With the data, the partition and the seeds of this draw."""
    data = dataclasses.replace(base.data, options={**base.data.options, "seed": draw})
    return dataclasses.replace(base, data=data, data_seed=draw, seed=SEEDS * draw)


def without_numbers(words: list[str]) -> set[str]:
    return {re.sub(r"\d+(\.\d+)?", "N", text) for text in words}


def page(out: Path) -> str:
    """What has been measured so far."""
    rule = (__doc__ or "").split("**The rule**")[1]
    table = (out / "search.md").read_text(encoding="utf-8")
    rows = table.splitlines()[2:]
    parts = ["# The demo", f"Made by `python benchmarks/demo.py page OUT`. **The rule**{rule}".rstrip()]
    parts += [
        "## The search",
        f"Accuracy in % (pre) in the last draw that was run. {table.count('| yes')} of {len(rows)} qualify.",
        table,
    ]
    if (out / "draws.md").exists():
        parts += ["## On ten other draws", (out / "draws.md").read_text(encoding="utf-8")]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "draws", "page"))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = {"search": search, "draws": draws, "page": page}[arguments.what](arguments.out)
    target = PAGE if arguments.what == "page" else arguments.out / f"{arguments.what}.md"
    target.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
