"""The labels of some clients change in round 20: who recovers, and how fast?

    python benchmarks/drift.py OUT [--seeds 3]      writes OUT/drift.md and OUT/drift.svg

A quarter of the clients drifts; the figures are theirs alone. Called again with the same OUT, it skips what is done.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

from matplotlib import pyplot

from headwise.app.launch import run_or_resume
from headwise.app.prepare import prepare
from headwise.report.tables import to_markdown
from headwise.runs.query import Run
from headwise.settings.experiment import experiment_from

METHODS = ["fedgmh", "fedah", "fedrep", "standalone"]
KINDS = {"swap": "two labels are exchanged", "appear": "a class appears", "vanish": "a class vanishes"}
ROUND = 20
ROUNDS = 40
BASE = {
    "data": "digits", "partition": "dirichlet:0.3", "clients": 20, "rounds": ROUNDS, "engine": {"workers": 1},
}  # fmt: skip


def curve(run: Run, who: frozenset[int]) -> list[float]:
    """Mean accuracy of these clients after each round's training."""
    by_round: dict[int, list[float]] = {}
    for line in run.clients:
        score = line.get("post", {}).get("test")
        if line["client"] in who and score:
            by_round.setdefault(line["round"], []).append(100 * score["accuracy"])
    return [fmean(by_round[t]) for t in sorted(by_round)]


def format_values(values: list[float]) -> str:
    return f"{fmean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    arguments = parser.parse_args()
    figure, (axes,) = pyplot.subplots(1, len(arguments.kinds), figsize=(11, 3.2), sharey=True, squeeze=False)
    parts: list[str] = []
    at = {"round 19": ROUND - 2, "round 20": ROUND - 1, "round 21": ROUND, "round 25": ROUND + 4, "round 40": -1}
    for axis, what in zip(axes, arguments.kinds, strict=True):
        title = KINDS[what]
        rows: list[list[str]] = []
        for method in METHODS:
            curves: list[list[float]] = []
            for seed in range(arguments.seeds):
                drift = {"round": ROUND, "what": what, "share": 0.25}
                experiment = experiment_from({**BASE, "method": method, "seed": seed, "drift": drift})
                run = run_or_resume(experiment, arguments.out / f"{what}-{method}-s{seed}")
                curves.append(curve(run, prepare(experiment, arguments.out).plan.drifting))
            axis.plot(range(1, ROUNDS + 1), [fmean(values) for values in zip(*curves, strict=True)], label=method)
            rows.append([method, *(format_values([c[k] for c in curves]) for k in at.values())])
        axis.set(title=title, xlabel="round")
        axis.axvline(ROUND, color="grey", linewidth=0.8, linestyle=":")
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{to_markdown((['method', *at], rows))}")
        (arguments.out / "drift.md").write_text("\n".join(parts), encoding="utf-8")
        print(parts[-1], flush=True)
    axes[0].set(ylabel="accuracy of the drifting clients, %")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(arguments.out / "drift.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
