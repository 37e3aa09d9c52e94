"""What privacy costs on digits: 20 clients, Dir(0.5), a network of 32 hidden units, 20 rounds, delta 1e-5.

    python benchmarks/privacy.py        # writes docs/results/privacy.md and privacy.svg; some minutes on two cores

Numbers are percent of the clients' test samples after the last round, before and after local training (pre / post), the
mean of three seeds. Client level: clip 0.3, batches of 10, rate 0.05. Example level: clip 1, batches of 30, rate 0.5,
and epsilon is that of the client with the largest. The noise is the same for all methods in a column.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib import pyplot

import headwise as hw
from headwise.engine.host import use_one_thread

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SEEDS = (0, 1, 2)
LEVELS: dict[str, dict[str, Any]] = {
    "client": {
        "methods": ("fedavg", "fedper", "fedgh", "fedgmh"),
        "clip": 0.3,
        "noises": (15.0, 5.0, 1.5, 0.5, 0.15),
        "train": {"batch": 10, "lr": 0.05},
    },
    "example": {
        "methods": ("fedavg", "fedper"),
        "clip": 1.0,
        "noises": (20.0, 7.0, 3.0, 1.5, 0.8),
        "train": {"batch": 30, "lr": 0.5},
    },
}


class Case(NamedTuple):
    """One run; without noise it is not private."""

    level: str
    method: str
    noise: float | None
    seed: int


class Result(NamedTuple):
    """What a run came to, in percent."""

    pre: float
    post: float
    epsilon: float | None


def run(case: Case) -> Result:
    settings = LEVELS[case.level]
    privacy = {"clip": settings["clip"], "noise": case.noise, "level": case.level}
    experiment = hw.Experiment(
        method=case.method,
        partition="dirichlet:0.5",
        model="mlp:32",
        clients=20,
        rounds=20,
        seed=case.seed,
        train=settings["train"],
        evaluate={"every": 20},
        privacy=privacy if case.noise else {},
        engine={"workers": 1},
    )
    with tempfile.TemporaryDirectory() as folder, use_one_thread():
        summary = hw.run(experiment, Path(folder) / "run").summary()
    pre, post = (100 * summary["accuracy"][m]["last"] for m in ("pre", "post"))
    return Result(pre, post, summary.get("privacy", {}).get("epsilon"))


def cases() -> list[Case]:
    return [
        Case(level, method, noise, seed)
        for level, settings in LEVELS.items()
        for method in ("standalone", *settings["methods"])
        for noise in (None, *(settings["noises"] if method != "standalone" else ()))
        for seed in SEEDS
    ]


def mean(results: dict[Case, Result], level: str, method: str, noise: float | None) -> Result:
    runs = [results[Case(level, method, noise, seed)] for seed in SEEDS]
    return Result(fmean(f.pre for f in runs), fmean(f.post for f in runs), runs[0].epsilon)


def table(results: dict[Case, Result], level: str) -> list[str]:
    settings = LEVELS[level]
    spent = [mean(results, level, settings["methods"][0], noise).epsilon for noise in settings["noises"]]
    heads = [*(f"epsilon {e:.3g}" for e in spent), "not private"]
    lines = [f"| {level} level | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    for method in settings["methods"]:
        row = [mean(results, level, method, noise) for noise in (*settings["noises"], None)]
        lines.append(f"| {method} | {' | '.join(f'{f.pre:.1f} / {f.post:.1f}' for f in row)} |")
    alone = mean(results, level, "standalone", None)
    empty = "| " * len(settings["noises"])
    return [*lines, f"| standalone, epsilon 0 {empty}| {alone.pre:.1f} / {alone.post:.1f} |"]


def draw(results: dict[Case, Result]) -> None:
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, (level, settings) in zip(panels, LEVELS.items(), strict=True):
        for k, method in enumerate(settings["methods"]):
            points = [mean(results, level, method, noise) for noise in settings["noises"]]
            panel.plot([p.epsilon for p in points], [p.pre for p in points], "o-", color=f"C{k}", label=method)
            panel.axhline(mean(results, level, method, None).pre, color=f"C{k}", linestyle=":", linewidth=1)
        alone = mean(results, level, "standalone", None).pre
        panel.axhline(alone, color="0.4", linewidth=1, label="standalone (nothing leaves)")
        panel.set(xscale="log", xlabel="epsilon", title=f"of one {level}; dotted: not private")
        panel.legend(fontsize="small")
    panels[0].set(ylabel="accuracy before training, %", ylim=(0, 100))
    figure.savefig(RESULTS / "privacy.svg", metadata={"Date": None})


def main() -> None:
    every = cases()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        results = dict(zip(every, pool.map(run, every), strict=True))
    about = (__doc__ or "").split("\n\n")
    text = [
        f"# What privacy costs\n\n{about[0]}\n{' '.join(about[2].split())} Made by `python benchmarks/privacy.py`.",
        "\n".join(table(results, "client")),
        "\n".join(table(results, "example")),
        "![Accuracy over epsilon, for clients and for examples](privacy.svg)",
    ]
    (RESULTS / "privacy.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    draw(results)


if __name__ == "__main__":
    main()
