"""How good a model is on samples with known classes: the run's metrics, who is taken for whom, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..disk.files import write_bytes
from ..engine.client.scores import score
from ..errors import ConfigError
from ..log.choosing import wanted
from ..log.metrics import Metric, Score, metrics
from ..report.page import render_judged
from .model import TrainedModel
from .samples import read

BINS = 10


class Bin(NamedTuple):
    """Samples whose most probable class has about this probability."""

    low: float
    high: float
    n: int
    confidence: float
    """their mean probability"""
    accuracy: float
    """the share of them that is right"""


class Judged(NamedTuple):
    scores: Score
    confusion: list[list[int]]
    """true classes by row, predicted ones by column"""
    bins: list[Bin]
    calibration: float
    """mean difference of confidence and accuracy, weighted by samples (expected calibration error)"""


def judge(model: TrainedModel, data: Path, *, told: Callable[[int], None] = lambda n: None, client: str = "") -> Judged:
    """Measure the model on these files, which must have the target."""
    if (task := model.card["task"]) != "classification":
        raise ConfigError(f"task is {task!r}, but evaluate can only do classification: use predict.")
    scores, sure, labels = list[Any](), list[Any](), list[Any]()
    for batch in read(data, model, labelled=True, client=client):
        said = model.say(batch.raw)
        scores.append(said.scores)
        sure.append(said.probabilities.max(1))
        labels.append(batch.labels)
        told(sum(map(len, labels)))
    z, p, y = (np.concatenate(each) for each in (scores, sure, labels))
    right = z.argmax(1) == y
    k = len(model.classes)
    confusion = np.bincount(y * k + z.argmax(1), minlength=k * k).reshape(k, k)
    bins = reliability(p, right)
    error = sum(b.n * abs(b.confidence - b.accuracy) for b in bins) / len(y)
    found = score(torch.from_numpy(z), torch.from_numpy(y), _measured(model, task), task)
    return Judged(found, confusion.tolist(), bins, error)


def _measured(model: TrainedModel, task: str) -> list[Metric]:
    """The usual metrics, and what else the run measured of this model; the page has its own calibration error."""
    usual = wanted(task, (), None)
    told = (model.card["metrics"] or {}).get("test") or {}
    more = [
        m
        for m in metrics()
        if m.name in told and m.label != "calibration error" and task in m.tasks and m.source == m.name
    ]
    return [*usual, *(m for m in more if m not in usual)]


def reliability(sure: np.ndarray, right: np.ndarray) -> list[Bin]:
    """For equal intervals of the highest probability, those that hold samples."""
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return [
        Bin(k / BINS, (k + 1) / BINS, int(here.sum()), float(sure[here].mean()), float(right[here].mean()))
        for k in range(BINS)
        if (here := place == k).any()
    ]


def shown(judged: Judged) -> list[tuple[str, str]]:
    """Each metric by its label, as tables show it."""
    found = [(m.label, m.form(judged.scores[m.name])) for m in metrics() if m.name in judged.scores]
    return [*found, ("calibration error", f"{judged.calibration * 100:.1f} %")]


def write_judged(model: TrainedModel, data: Path, judged: Judged, out: Path) -> None:
    """One page with all of it."""
    of = model.card["of"]
    whose = "The global model" if of.get("kind") == "global" else f"The model of client {of.get('name')}"
    page = render_judged(
        title=f"{whose} on {data.name}",
        n=judged.scores["n"],
        floor=model.card.get("floor"),
        figures=shown(judged),
        classes=model.classes,
        confusion=judged.confusion,
        bins=judged.bins,
    )
    write_bytes(out, page.encode())
