"""Clients that join late: how good is what they get, and would they have done better alone?

    python benchmarks/new_clients.py OUT [--data-dir DIR] [--only digits,mnist,hospitals]      writes OUT/*.md

Some clients never train; after the last round they join, with 0, 1 and 5 epochs on their own samples. On digits and
MNIST a fifth of the clients is held out, on heart disease each of the four hospitals in turn. Called again with the
same OUT, it skips what is done.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import headwise as hw
from headwise.data.sources.heart_disease import HOSPITALS
from headwise.engine.sampling import newcomers
from headwise.report.data import tabulate_newcomers
from headwise.report.results import Line
from headwise.report.tables import to_markdown
from headwise.settings.experiment import Experiment, experiment_from

METHODS = [
    *("fedftha", "fedah", "fedgmh", "fedgh", "fedafk"),
    *("fedavg-ft", "fedrep", "fedbabu", "per-fedavg", "standalone"),
]
SEEDS = 3
MNIST = {"data": "mnist", "model": "mlp", "fraction": 0.05, "clients": 20, "rounds": 10}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        "digits, 20 clients, Dirichlet 0.3": {
            "data": "digits", "partition": "dirichlet:0.3", "clients": 20, "rounds": 40,
        },
        "digits, 20 clients, 2 classes each": {
            "data": "digits", "partition": "pathological:2", "clients": 20, "rounds": 40,
        },
    },
    "mnist": {"a twentieth of MNIST, 20 clients, Dirichlet 0.3": {**MNIST, "partition": "dirichlet:0.3"}},
}  # fmt: skip
HEART = {"data": "heart-disease", "partition": "natural", "model": "mlp:16", "rounds": 20}
MOMENTS = [("joined", 0), ("joined", 1), ("joined", 5), ("alone", 5), ("standalone", HEART["rounds"])]
EPOCHS = 5


def passes(lines: Sequence[Line]) -> str:
    """How often each method goes over a newcomer's samples, whose epochs count only what `train.epochs` does."""
    sentences: list[str] = []
    for line in lines:
        rows = (line.runs[0].new_clients or {"rows": []})["rows"]
        counts = [f"{row['passes']:g}" for row in rows if row["model"] == "joined"]
        sentences.append(f"{line.name} {' / '.join(counts)}")
    return f"Passes over a newcomer's samples at 0 / 1 / 5 epochs: {', '.join(sentences)}."


def base_of(setting: dict[str, Any], share: float) -> Experiment:
    evaluate = {"every": setting["rounds"], "new_clients": share}
    return experiment_from({**setting, "evaluate": evaluate, "engine": {"workers": 1}})


def a_fifth(title: str, setting: dict[str, Any], out: Path, data_dir: Path | None) -> str:
    comparison = hw.compare(base_of(setting, 0.2), METHODS, SEEDS, out, data_dir=data_dir)
    table = tabulate_newcomers(comparison.setting)
    assert table is not None
    about = f"{setting['rounds']} rounds, {SEEDS} seeds, 16 clients train and 4 join; majority floor"
    floor = f"{100 * (comparison.setting.floor or 0):.2f} (all 20)"
    return f"## {title}\n\n{about} {floor}.\n\n{to_markdown(table)}\n{passes(comparison.setting.lines)}\n"


def hospitals(out: Path, data_dir: Path | None) -> str:
    """Each hospital is held out by the first three seeds that draw it."""
    base = base_of(HEART, 1 / len(HOSPITALS))
    scores: dict[str, dict[tuple[str, int, str, int], float]] = {m: {} for m in METHODS}
    for k, name in enumerate(HOSPITALS):
        seeds = islice((s for s in count() if newcomers(replace(base, seed=s), len(HOSPITALS)) == [k]), SEEDS)
        for j, seed in enumerate(seeds):
            done = hw.compare(replace(base, seed=seed), METHODS, 1, out / f"{name}-{j}", data_dir=data_dir)
            for line in done.setting.lines:
                for row in (line.runs[0].new_clients or {})["rows"]:
                    scores[line.name][row["model"], row["epochs"], name, j] = 100 * row["accuracy"]
    head = ["method", "joined, 0 epochs", "joined, 1 epoch", "joined, 5 epochs", "alone, 5 epochs", "alone as long"]
    rows = [
        [m, *(_join([fmean(scores[m][*at, name, j] for name in HOSPITALS) for j in range(SEEDS)]) for at in MOMENTS)]
        for m in METHODS
    ]
    each = [
        [m, *(_join([scores[m]["joined", EPOCHS, name, j] for j in range(SEEDS)]) for name in HOSPITALS)]
        for m in METHODS
    ]
    alone = [_join([scores[METHODS[0]][*MOMENTS[-1], name, j] for j in range(SEEDS)]) for name in HOSPITALS]
    return "\n".join([
        "## Heart disease, one of the four hospitals joins",
        "",
        f"{HEART['rounds']} rounds, {HEART['model']}, {SEEDS} seeds for each hospital; means over the four hospitals.",
        "",
        to_markdown((head, rows)),
        f"After {EPOCHS} epochs, hospital by hospital:",
        "",
        to_markdown((["method", *HOSPITALS], [*each, ["alone as long", *alone]])),
    ])  # fmt: skip


def _join(values: list[float]) -> str:
    return f"{fmean(values):.2f} ± {stdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", default=",".join([*SETTINGS, "hospitals"]))
    arguments = parser.parse_args()
    for only in arguments.only.split(","):
        parts = [
            a_fifth(title, setting, arguments.out / f"{only}-{k}", arguments.data_dir)
            for k, (title, setting) in enumerate(SETTINGS.get(only, {}).items())
        ]
        if only == "hospitals":
            parts = [hospitals(arguments.out / only, arguments.data_dir)]
        (arguments.out / f"{only}.md").write_text("\n".join(parts), encoding="utf-8")
        print("\n".join(parts), flush=True)


if __name__ == "__main__":
    main()
