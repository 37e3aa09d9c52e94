"""What a model's card says of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data.dataset import Dataset
from ..data.own.description import read_description
from ..runs.query import Run
from ..settings.experiment import OWN, Choice, Experiment, experiment_from
from ..settings.fields import dump


def about(
    run: Run, dataset: Dataset, *, t: int, which: str, client: int | None = None, moment: str = "", licence: str = ""
) -> dict[str, Any]:
    """The card of a client's model, or of the global one, but for its inputs and files."""
    manifest, experiment = run.manifest, experiment_from(run.manifest["experiment"])
    named = {} if client is None else {"client": client, "name": run.names[client] if run.names else str(client)}
    of = {"kind": "global" if client is None else "personal", **named, "moment": moment, "round": t, "which": which}
    about_it = {**card_of(experiment, experiment.data, dataset, of, licence), "privacy": manifest.get("privacy")}
    about_it["metric"] = run.metric.name
    about_it["training"] |= {
        "rounds": t, "clients": manifest["experiment"]["clients"], "created": manifest.get("created"),
        "headwise": manifest.get("headwise"), "partition": manifest["partition"]["hash"], "seed": experiment.seed,
    }  # fmt: skip
    if client is None:
        row = next((r for r in run.rounds if r["round"] == t), {})
        return {**about_it, "metrics": row.get("global"), "floor": run.floor}
    about_it["training"]["samples"] = sum(run.partition["train"][client])
    floor = run.floors[client] if run.floors else None
    return {**about_it, "metrics": _scores(run, client, t, moment), "floor": floor}


def card_of(experiment: Experiment, data: Choice, dataset: Dataset, of: dict[str, Any], licence: str) -> dict[str, Any]:
    """What is known wherever the model was made; `data` is where the samples come from."""
    path = data.options.get("path") if data.name == OWN else None  # none at the server of a federation
    described = read_description(Path(path)) if path else None
    return {
        "task": dataset.task,
        "classes": list(dataset.classes),
        "of": of,
        "reading": {} if described is None else {**dump(described), "path": "", "sha256": ""},
        "metrics": None,
        "floor": None,
        "training": {
            "method": dump(experiment.method),
            "model": dump(experiment.model),
            "data": data.name,
            "train": dump(experiment.train),
        },
        "privacy": None,
        "licence": licence,
    }


def _scores(run: Run, client: int, t: int, moment: str) -> dict[str, Any] | None:
    """What the run measured of this model; none if it did not."""
    seen = {row["round"]: row.get(moment) for row in run.clients if row["client"] == client and moment in row}
    rounds = [r for r in seen if r == t or (r < t and moment == "post")]  # the last training may be some rounds ago
    found = seen[max(rounds)] if rounds else None
    return found and {part: scores for part, scores in dict(found).items() if scores}
