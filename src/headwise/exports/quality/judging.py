"""How good a model is on samples with known targets: the run's metrics, and what lies behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ...disk.files import write_bytes
from ...engine.client.scores import score
from ...errors import ConfigError, counted
from ...log.choosing import judging, wanted
from ...log.metrics import Metric, Score, metrics
from ..model import TrainedModel
from ..samples import read
from .batches import Measuring
from .details import Bin, Residuals, each_of, quantities, reliability, residuals
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
    """Measure the model on these files, which must have the target.

    Scores are kept only for metrics that need all of them, such as AUC: a file may have more than memory holds.
    """
    task, names, clients, n = model.card["task"], model.classes, set[str](), 0
    measured = Measuring(task, _measured(model, task))
    for batch in read(data, model, labelled=True, client=client):
        assert batch.y is not None  # they were asked for
        clients |= {name for name in batch.clients if name}
        measured.add(model.say(batch.raw), batch.y)
        told(n := n + len(batch.names))
    scores, who = measured.scores(), sorted(clients)
    if task == "regression":
        z, y = measured.kept
        return Judged(scores, who, quantities(names, z, y), [], [], None, residuals(names, z, y))
    tally, bins = measured.tally, reliability(measured.bins)
    confusion = [] if task == "multilabel" else tally.confusion.long().tolist()
    error = sum(b.n * abs(b.confidence - b.accuracy) for b in bins) / sum(b.n for b in bins)
    return Judged(scores, who, each_of(task, names, tally.hits), confusion, bins, error, [])


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
        said=" ".join([measured_on(judged), *_floor(model)]),
        figures=shown(judged),
        classes=model.classes,
        judged=judged,
    )
    write_bytes(out, page.encode())


def measured_on(judged: Judged) -> str:
    """How many samples of whom."""
    several = f" of {len(judged.clients)} clients" if len(judged.clients) > 1 else ""
    return f"{counted(int(judged.scores['n']), 'sample')}{several}."


def _floor(model: TrainedModel) -> list[str]:
    """What a model without inputs had in the run."""
    floor = model.card.get("floor")
    try:
        metric = judging(model.card.get("metric"), model.card["task"])
    except ConfigError:  # of a package that is not installed here
        return []
    known = isinstance(floor, float)
    return [f"In the run, a model that ignores its inputs had {metric.label} {metric.form(floor)}."] if known else []
