"""What a comparison is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..log.metrics import ACCURACY, Metric


def title_of(experiment: Mapping[str, Any], metric: Metric = ACCURACY) -> str:
    """What an experiment is run on: data set, partition and number of clients; and by what it is judged."""
    at_sites = experiment.get("engine", {}).get("kind") == "flower"  # which have their own data, whatever its options
    data = _choice({"name": experiment["data"]["name"]} if at_sites else experiment["data"])
    clients = experiment["clients"]
    counted = f"{clients} client{'s' * (clients != 1)}"
    on = f"{data}, {'at sites' if at_sites else _choice(experiment['partition'])}, {counted}"
    return on if metric is ACCURACY else f"{on}, by {metric.label}"


def _choice(value: Mapping[str, Any]) -> str:
    """A data set or a partition with its first options, as you would type it; own data by their path."""
    if value["name"] == "own":
        return "/".join(Path(str(value.get("path", ""))).parts[-2:]) or "own data"
    plain = [v for k, v in value.items() if k not in ("name", "values") and isinstance(v, (int, float, str))]
    return ":".join([value["name"], *(str(v) for v in plain[:2] if not isinstance(v, bool))])
