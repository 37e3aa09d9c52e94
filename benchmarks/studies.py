"""Small studies of the five methods, each a table in docs/results/ that anybody can make again.

    HEADWISE_DATA=... python benchmarks/studies.py ah

What is finished is not run again: delete runs/studies/<name> to start over.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headwise as hw
from headwise.app.launch import run_or_resume
from headwise.cli.display import show_progress
from headwise.settings.experiment import experiment_from, override

RESULTS = Path(__file__).parent.parent / "docs" / "results"


@dataclass(frozen=True)
class Study:
    """One setting, several methods."""

    title: str
    base: dict[str, Any]
    methods: dict[str, tuple[str, ...]]
    """name in the table -> the method, then changes of other settings"""
    moments: tuple[str, ...] = ("pre", "post", "stale")
    target: float = 0.9
    note: str = ""


AH = {
    "data": "mnist", "fraction": 0.2, "partition": "dirichlet:0.1", "clients": 20, "rounds": 40, "model": "cnn",
    "train": {"batch": 10, "lr": 0.005}, "evaluate": {"every": 2}, "engine": {"workers": 2},
}  # fmt: skip

STUDIES = {
    "ah": Study(
        "FedAH's setting on a fifth of MNIST: Dir(0.1), 20 clients, all in every round, 40 rounds",
        AH,
        {
            "Standalone": ("standalone",),
            "FedRep": ("fedrep:head_epochs=1",),
            "FedALA": ("fedala",),
            "FedAH, weight_lr 1.0": ("fedah",),
            "FedAH, weight_lr local": ("fedah:weight_lr=local",),
            "FedAFK": ("fedafk",),
            "FedAFK without KT": ("fedafk:lam=0",),
            "FedAFK without AFA": ("fedafk:mix=never",),
            "FedAFK without both": ("fedafk:lam=0:mix=never",),
        },
    ),
}


def main(names: list[str]) -> None:
    """Run these studies and write their tables."""
    for name in names:
        study = STUDIES[name]
        rows = []
        run = None
        for title, (method, *changes) in study.methods.items():
            experiment = experiment_from(override({**study.base, "method": method}, changes))
            folder = Path("runs/studies") / name / title.lower().replace(", ", "-").replace(" ", "-")
            with show_progress(f"{name}: {title}", quiet=False) as observers:
                run = run_or_resume(experiment, folder, observers=observers)
            rows.append(row(title, run, study))
        assert run is not None
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.md").write_text(page(name, study, rows, run))


def row(title: str, run: hw.Run, study: Study) -> list[str]:
    """One method: best and last accuracy by moment, worst decile, rounds to the target, traffic."""
    s = run.summary()
    cells = [title]
    for moment in study.moments:
        a = s["accuracy"].get(moment)
        cells.append(f"{a['best'] * 100:.2f} / {a['last'] * 100:.2f}" if a else "")
    worst = s["accuracy"]["stale"]["worst_decile"]
    reached = {
        m: next((r["round"] for r in run.rounds if r.get(m, {}).get("accuracy", 0) >= study.target), None)
        for m in ("pre", "stale")
    }
    served = sum(len(r["clients"]) for r in run.rounds)
    traffic = [f"{s[way] / 1024 / served:,.2f}" for way in ("bytes_down", "bytes_up")]
    first = " / ".join("–" if t is None else str(t) for t in reached.values())
    return [*cells, f"{worst * 100:.1f}", first, *traffic]


def page(name: str, study: Study, rows: list[list[str]], run: hw.Run) -> str:
    """The table with its setting and the command."""
    head = [
        "method",
        *(f"{m}: best / last %" for m in study.moments),
        "worst decile %",
        f"rounds to {study.target:.0%} (pre / stale)",
        "KB down",
        "KB up",
    ]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    part = run.manifest["partition"]
    settings = "\n".join(f"{k} = {v}" for k, v in study.base.items() if k != "engine")
    return f"""# {study.title}

Made by `HEADWISE_DATA=... python benchmarks/studies.py {name}`: one seed, accuracy over all clients' test samples,
traffic per participating client and round. The majority-class floor is **{part["floor"]["weighted"] * 100:.2f} %**
(client mean {part["floor"]["mean"] * 100:.2f} %); partition {part["hash"][:12]}, {part["train"]} training and
{part["test"]} test samples.

{table}

```
{settings}
```
"""


if __name__ == "__main__":
    main(sys.argv[1:] or list(STUDIES))
