"""Clients that join late: how good is what they get, and would they have done better alone?

    python benchmarks/new_clients.py OUT [--seeds 3] [--rounds 40]      writes OUT/new-clients.md

A fifth of the clients never trains; after the last round they join, with 0, 1 and 5 epochs on their own samples. Called
again with the same OUT, it skips what is done.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import headwise as hw
from headwise.report.joined import joined_table
from headwise.report.results import Line
from headwise.report.tables import markdown
from headwise.settings.experiment import experiment_from

METHODS = [
    *("fedftha", "fedah", "fedgmh", "fedgh", "fedafk"),
    *("fedavg-ft", "fedrep", "fedbabu", "per-fedavg", "standalone"),
]
SETTINGS = {
    "digits, 20 clients, Dirichlet 0.3": {"data": "digits", "partition": "dirichlet:0.3", "clients": 20},
    "digits, 20 clients, 2 classes each": {"data": "digits", "partition": "pathological:2", "clients": 20},
}


def passes(lines: Sequence[Line]) -> str:
    """How often each method goes over a newcomer's samples, whose epochs count only what `train.epochs` does."""
    said: list[str] = []
    for line in lines:
        rows = (line.runs[0].new_clients or {"rows": []})["rows"]
        counts = [f"{row['passes']:g}" for row in rows if row["model"] == "joined"]
        said.append(f"{line.name} {' / '.join(counts)}")
    return f"Passes over a newcomer's samples at 0 / 1 / 5 epochs: {', '.join(said)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    parts: list[str] = []
    for k, (title, setting) in enumerate(SETTINGS.items()):
        more = {"evaluate": {"every": asked.rounds, "new_clients": 0.2}, "engine": {"workers": 1}}
        base = experiment_from({**setting, "rounds": asked.rounds, **more})
        found = hw.compare(base, METHODS, asked.seeds, asked.out / str(k))
        table = joined_table(found.setting)
        assert table is not None
        said = f"{asked.rounds} rounds, {asked.seeds} seeds, 16 clients train and 4 join; majority floor"
        floor = f"{100 * (found.setting.floor or 0):.2f} (all 20)"
        parts.append(f"## {title}\n\n{said} {floor}.\n\n{markdown(table)}\n{passes(found.setting.lines)}\n")
        (asked.out / "new-clients.md").write_text("\n".join(parts), encoding="utf-8")
        print(parts[-1], flush=True)


if __name__ == "__main__":
    main()
