"""How good a model is on samples with known targets: the run's metrics, and what lies behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...disk.files import write_bytes
from ...engine.client.scores import score
from ...errors import ConfigError
from ...errors import counted as many
from ...log.choosing import judging, wanted
from ...log.metrics import Metric, Score, metrics
from ..model import TrainedModel
from ..samples import read
from .details import Bin, Residuals, certainty, confusion_of, each_of, reliability, residuals
from .judged_page import page_of


class Judged(NamedTuple):
    scores: Score
    clients: list[str]
    """whose samples these were, where the data says it"""
    each: list[dict[str, Any]]
    """figures of each class, label or quantity"""
    confusion: list[list[int]]
    """samples or pixels, true classes by row and predicted ones by column; empty for labels and quantities"""
    bins: list[Bin]
    """how sure it is; empty for quantities"""
    calibration: float | None
    """mean difference of confidence and accuracy, weighted by predictions (expected calibration error)"""
    residuals: list[Residuals]
    """of quantities"""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = {"bins": [b._asdict() for b in self.bins], "residuals": [r._asdict() for r in self.residuals]}
        return {**self._asdict(), **told}


def judge(model: TrainedModel, data: Path, *, told: Callable[[int], None] = lambda n: None, client: str = "") -> Judged:
    """Measure the model on these files, which must have the target."""
    task, names = model.card["task"], model.classes
    scores, sure, right, targets, clients = list[Any](), list[Any](), list[Any](), list[Any](), set[str]()
    for batch in read(data, model, labelled=True, client=client):
        said = model.say(batch.raw)
        scores.append(said.scores)
        targets.append(batch.y)
        clients |= {name for name in batch.clients if name}
        if task != "regression":
            one, other = certainty(task, said.probabilities, said.scores, targets[-1])
            sure.append(one)
            right.append(other)
        told(sum(map(len, targets)))
    z, y = np.concatenate(scores), np.concatenate(targets)
    confusion = confusion_of(z.argmax(1), y, len(names)) if task in ("classification", "segmentation") else []
    rest = sorted(clients), each_of(task, names, z, y), confusion
    if task == "regression":
        return Judged(scored(model, z, y), *rest, [], None, residuals(names, z, y))
    bins = reliability(np.concatenate(sure), np.concatenate(right))
    error = sum(b.n * abs(b.confidence - b.accuracy) for b in bins) / sum(b.n for b in bins)
    return Judged(scored(model, z, y), *rest, bins, error, [])


def scored(model: TrainedModel, z: NDArray[Any], y: NDArray[Any]) -> Score:
    """The usual metrics of these scores, and what else the run measured of this model."""
    task = model.card["task"]
    return score(torch.from_numpy(z), torch.from_numpy(y), _measured(model, task), task)


def _measured(model: TrainedModel, task: str) -> list[Metric]:
    """Without the calibration error of the run's bins: the page has its own."""
    usual = wanted(task, (), None)
    told = (model.card["metrics"] or {}).get("test")
    told = told if isinstance(told, dict) else {}
    more = [
        m
        for m in metrics()
        if m.name in told and m.label != "calibration error" and task in m.tasks and m.source == m.name
    ]
    return [*usual, *(m for m in more if m not in usual)]


def shown(judged: Judged) -> list[tuple[str, str]]:
    """Each metric by its label, as tables show it."""
    found = [(m.label, m.form(judged.scores[m.name])) for m in metrics() if m.name in judged.scores]
    sure = [] if judged.calibration is None else [("calibration error", f"{judged.calibration * 100:.1f} %")]
    return [*found, *sure]


def write_judged(model: TrainedModel, data: Path, judged: Judged, out: Path) -> None:
    """One page with all of it."""
    of = model.card["of"]
    named = {"global": "The global model", "adapted": "The adapted model"}
    whose = named.get(of.get("kind", ""), f"The model of client {of.get('name')}")
    page = page_of(
        title=f"{whose} on {data.name}",
        task=model.card["task"],
        said=" ".join([counted(judged), *_floor(model)]),
        figures=shown(judged),
        classes=model.classes,
        judged=judged,
    )
    write_bytes(out, page.encode())


def counted(judged: Judged) -> str:
    """How many samples of whom."""
    several = f" of {len(judged.clients)} clients" if len(judged.clients) > 1 else ""
    return f"{many(int(judged.scores['n']), 'sample')}{several}."


def _floor(model: TrainedModel) -> list[str]:
    """What a model without inputs had in the run."""
    floor = model.card.get("floor")
    try:
        metric = judging(model.card.get("metric"), model.card["task"])
    except ConfigError:  # of a package that is not installed here
        return []
    known = isinstance(floor, float)
    return [f"In the run, a model that ignores its inputs had {metric.label} {metric.form(floor)}."] if known else []
