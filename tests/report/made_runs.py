"""Handwritten run folders: quickly as large, odd or hostile as a test needs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from headwise.settings.experiment import Experiment

ROUNDS = 6
CLIENTS = 5
CLASSES = 4


def manifest(
    method: str, seed: int, clients: int = CLIENTS, options: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A manifest as `runs.manifest.describe` writes it."""
    experiment = {
        **Experiment(clients=clients, rounds=ROUNDS, seed=seed).to_plain(),
        "method": {"name": method, **(options or {})},
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "model": [{"name": "mlp"}],
        **more,
    }
    return {
        "format": 1,
        "created": "2026-01-02T03:04:05+00:00",
        "command": ["headwise", "compare"],
        "experiment": experiment,
        "partition": {
            "hash": f"{experiment['data']['name']}-{experiment['data_seed']}",
            "floor": {"weighted": 0.4, "mean": 0.4},
        },
        "data_dir": "/data",
        "hardware": {"cpu": "", "kernels": ""},
        "versions": {"torch": ""},
    }


def score(accuracy: float) -> dict[str, Any]:
    return {"test": {"n": 10, "accuracy": accuracy, "balanced": accuracy, "f1": accuracy, "loss": 0.5}, "val": None}


def over_clients(accuracy: float, clients: int) -> dict[str, Any]:
    same = dict.fromkeys(("accuracy", "client_mean", "balanced", "f1"), accuracy)
    return {**same, "client_std": 0.1, "worst_decile": accuracy / 2, "loss": 0.5, "clients": clients}


def make_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    *,
    end: float = 0.9,
    rounds: int = ROUNDS,
    clients: int = CLIENTS,
    classes: int = CLASSES,
    by_client: dict[int, float] | None = None,
    shift: dict[str, float] | None = None,
    validation: float | None = None,
    **experiment: Any,
) -> Path:
    """A finished run whose accuracy grows linearly to `end`, which is also each client's unless `by_client` has it.

    `shift` is added at a moment; `validation` is the accuracy on validation samples in all rounds, at all clients.
    """
    folder.mkdir(parents=True)
    write(folder / "manifest.json", manifest(method, seed, clients, **experiment))
    rng = random.Random(0)
    counts = [[rng.randrange(1, 20) if (c + k) % 3 else 0 for k in range(classes)] for c in range(clients)]
    write(folder / "partition.json", dict.fromkeys(("train", "val", "test"), counts))
    rows = []
    lines = []
    for t in range(1, rounds + 1):
        accuracy = end * t / rounds
        judged = {} if validation is None else {"val_accuracy": validation}
        moments = {
            m: over_clients(accuracy + (shift or {}).get(m, 0.0), clients) | judged for m in ("pre", "post", "stale")
        }
        rows.append({
            "round": t, "clients": list(range(clients)), "bytes_up": 1000 * clients, "bytes_down": 2000 * clients,
            **moments, "bytes_evaluation": 0, "samples": 100, "seconds": {"train": 0.1, "round": 0.2, "workers": {}},
        })  # fmt: skip
        for c in range(clients) if t > rounds - 2 else ():
            own = score((by_client or {}).get(c, accuracy) if t == rounds else 0.0)
            own["val"] = None if validation is None else score(validation)["test"]
            lines.append({"round": t, "client": c, "pre": own, "post": own})
    for name, content in (("rounds.jsonl", rows), ("clients.jsonl", lines)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    write(folder / "result.json", {"ended": "finished"})
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
