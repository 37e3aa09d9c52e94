"""Reading runs: numbers from their folders, with nothing but the standard library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import RunError
from .files import read_json
from .manifest import read_manifest

MOMENTS = ("pre", "post", "stale", "global")


@dataclass(frozen=True)
class Run:
    """A run's folder, finished or not."""

    path: Path

    def __post_init__(self) -> None:
        """A text will do."""
        object.__setattr__(self, "path", Path(self.path))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the run is: its experiment, partition, versions and hardware."""
        return read_manifest(self.path)

    @property
    def method(self) -> str:
        """The method's name."""
        return self.manifest["experiment"]["method"]["name"]

    @property
    def floor(self) -> float | None:
        """The accuracy of predicting each client's most frequent class; what a model must beat to be worth anything."""
        return self.manifest["partition"]["floor"]["weighted"]

    @property
    def ended(self) -> str:
        """Why the last session ended; ``unfinished`` if it was killed or still runs."""
        path = self.path / "result.json"
        found = read_json(path) if path.exists() else {"ended": "unfinished"}
        if not isinstance(found, dict) or not isinstance(found.get("ended"), str):
            raise RunError(f"{path} is damaged: it does not say why the run ended.")
        return found["ended"]

    @property
    def complete(self) -> bool:
        """Whether no round is left to run."""
        return self.ended in ("finished", "patience")

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl: one per round, metrics by moment."""
        return list(_lines(self.path / "rounds.jsonl"))

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl: one per client and round."""
        return list(_lines(self.path / "clients.jsonl"))

    @property
    def diagnostics(self) -> list[dict[str, Any]]:
        """The lines of diagnostics.jsonl: what the method told about its inside, one per evaluation."""
        return list(_lines(self.path / "diagnostics.jsonl"))

    @property
    def sites(self) -> list[dict[str, Any]]:
        """The lines of sites.jsonl: one per message to a site, where clients were at sites."""
        return list(_lines(self.path / "sites.jsonl"))

    def accuracy(self, moment: str = "pre") -> float:
        """The last accuracy at this moment, over all samples of all clients."""
        curve = [row[moment]["accuracy"] for row in self.rounds if "accuracy" in row.get(moment, {})]
        if not curve:
            raise RunError(f"{self.path} has no evaluation at the moment {moment!r}.")
        return curve[-1]

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object."""
        rows, experiment = self.rounds, self.manifest["experiment"]
        return {
            "run": str(self.path),
            "method": experiment["method"]["name"],
            "data": experiment["data"]["name"],
            "partition": experiment["partition"]["name"],
            "clients": experiment["clients"],
            "seed": experiment["seed"],
            "rounds": len(rows),
            "floor": self.floor,
            "accuracy": {m: s for m in MOMENTS if (s := summarize([r for r in rows if "accuracy" in r.get(m, {})], m))},
            "bytes_up": sum(r["bytes_up"] for r in rows),
            "bytes_down": sum(r["bytes_down"] for r in rows),
            "bytes_evaluation": sum(r.get("bytes_evaluation", 0) for r in rows),
            "seconds": round(sum(r["seconds"]["round"] for r in rows), 3),
            **({"privacy": self.manifest["privacy"]} if "privacy" in self.manifest else {}),
            **({"failed": failed} if (failed := _failures(rows)) else {}),
        }

    @property
    def privacy(self) -> str:
        """What is promised to whom, in words; nothing where nothing is protected."""
        spent = self.manifest.get("privacy")
        if spent is None:
            return ""
        try:
            secret = "; but the noise comes from the seed and protects nobody" if spent.get("source") == "seed" else ""
            guarantee = f"epsilon {spent['epsilon']:.3g}, delta {spent['delta']:g}"
            return f"{guarantee}, of one {spent['unit']} against the server{secret}"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.path / 'manifest.json'} is damaged: its privacy is {spent!r}.") from error

    @property
    def failed(self) -> dict[str, int]:
        """How often clients failed, by reason."""
        return _failures(self.rounds)


def summarize(rows: list[dict[str, Any]], moment: str) -> dict[str, Any]:
    """What a curve comes to: its last, best and last ten, and the round chosen on the validation part."""
    if not rows:
        return {}
    curve = [r[moment]["accuracy"] for r in rows]
    best = max(range(len(curve)), key=lambda i: (curve[i], -i))
    last = rows[-1][moment]
    found = {
        "last": curve[-1],
        "best": curve[best],
        "best_round": rows[best]["round"],
        "last_ten": fmean(curve[-10:]),
        **{k: last[k] for k in ("client_mean", "client_std", "worst_decile", "balanced", "f1", "loss")},
    }
    judged = [i for i, r in enumerate(rows) if "val_accuracy" in r[moment]]
    if judged:
        chosen = max(judged, key=lambda i: (rows[i][moment]["val_accuracy"], -i))
        found |= {"selected": curve[chosen], "selected_round": rows[chosen]["round"]}
    return found


def _failures(rows: list[dict[str, Any]]) -> dict[str, int]:
    found = Counter[str]()
    for row in rows:
        found.update({reason: len(who) for reason, who in row.get("failed", {}).items()})
    return dict(found)


def find_runs(folder: Path) -> list[Run]:
    """All runs in this folder and below it."""
    return [Run(p.parent) for p in sorted(folder.glob("**/manifest.json"))]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines only: the last one of a run that was killed may be torn."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise RunError(f"{path} is damaged at line {number}: it is no valid JSON.") from error
