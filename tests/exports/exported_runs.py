"""Small runs whose models are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.disk.files import digest, seal, write_json
from headwise.engine.client.scoring import score
from headwise.errors import HeadwiseError
from headwise.exports.model import TrainedModel
from headwise.exports.run_models import Models
from headwise.log.metrics import metrics_to_measure


def small_run(folder: Path, method: Any = "fedrep", **more: Any) -> hw.Run:
    return hw.run(usual_experiment(method, **more), folder)


def usual_experiment(method: Any, **more: Any) -> hw.Experiment:
    """Four clients of which two train in a round, so that some models are older than others."""
    usual: dict[str, Any] = {"data": "synthetic:samples=400", "clients": 4, "rounds": 2, "split": "6:2:2"}
    usual |= {"sampling": {"ratio": 0.5}, "engine": {"workers": 1}}
    return hw.Experiment(method=method, **{**usual, **more})


def raw(models: Models, client: int) -> Any:
    """A client's test and validation samples, as an evaluation takes them."""
    part = models.data.parts[client]
    return models.data.dataset.x[[*part.test, *part.val]]


def score_tests(models: Models, model: TrainedModel, client: int) -> dict[str, float]:
    """The run's metrics on the client's test samples."""
    part = models.data.parts[client]
    scores = torch.from_numpy(model.infer(raw(models, client)).scores[: len(part.test)])
    return score(
        scores,
        torch.from_numpy(models.data.dataset.y[part.test]),
        metrics_to_measure("classification", (), None),
        "classification",
    )


def rewrite(
    folder: Path, change: Callable[[dict[str, Any]], Any] = dict, files: Mapping[str, bytes] | None = None
) -> None:
    """Change the card and files as an attacker would, with all hashes right."""
    card = json.loads((folder / "card.json").read_text())
    for name, data in (files or {}).items():
        (folder / name).write_bytes(data)
        card["files"][name] = {"bytes": len(data), "sha256": digest(data)}
    change(card)
    write_json(folder / "card.json", seal(card))


def check_refused(folder: Path, why: str, network: Any = None) -> None:
    with pytest.raises(HeadwiseError, match=why) as caught:
        hw.load_model(folder, network)
    assert "\n" not in str(caught.value)
