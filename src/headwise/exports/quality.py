"""How good a model is on samples with known targets: its metrics, each class or quantity, and a page about it.

Samples come batch by batch, since a file may have more of them than memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..disk.files import write_bytes
from ..engine.client.scoring import score, score_predictions
from ..errors import ConfigError, counted
from ..log.metrics import Hits, Metric, Predictions, Score, Tally, main_metric, metrics, metrics_to_measure
from ..report.page import render_judged
from .model import Said, TrainedModel
from .samples import read

Array = NDArray[Any]


class Measuring:
    """Counts and means of all batches; their scores only for quantities, and for metrics such as AUC."""

    def __init__(self, task: str, wanted: Sequence[Metric]) -> None:
        self.task, self.wanted, self.tally, self.bins = task, wanted, Tally(task), np.zeros((3, BINS))
        self._keeping = task == "regression" or any(m.needs == "all" for m in wanted)
        self._batches = list[tuple[Array, Array]]()
        self._sums = dict[str, float]()

    def add(self, said: Said, y: Array) -> None:
        batch = Predictions(torch.from_numpy(said.scores), torch.from_numpy(y), self.task)
        found = score_predictions(batch, self._that_need("mean"))
        self._sums = {m.name: self._sums.get(m.name, 0.0) + found[m.name] * batch.n for m in self._that_need("mean")}
        self.tally.add(batch)
        if self.task != "regression":
            self.bins += binned(*certainty(self.task, said.probabilities, said.scores, y))
        if self._keeping:
            self._batches.append((said.scores, y))

    @cached_property
    def kept(self) -> tuple[Array, Array]:
        """All scores and targets, where they are kept."""
        z, y = (np.concatenate(each) for each in zip(*self._batches, strict=True))
        self._batches.clear()
        return z, y

    def scores(self) -> Score:
        found = score_predictions(self.tally, self._that_need("counts"))
        found |= {name: total / self.tally.n for name, total in self._sums.items()}
        if self._keeping:
            z, y = map(torch.from_numpy, self.kept)
            found |= score_predictions(Predictions(z, y, self.task), self._that_need("all"))
        return found

    def _that_need(self, what: str) -> list[Metric]:
        return [m for m in self.wanted if m.needs == what]


BINS = 10
"""of probabilities"""
INTERVALS = 20
"""of errors"""
POINTS = 500
"""samples that a picture of a quantity shows"""


class Bin(NamedTuple):
    """Predictions with about this probability."""

    low: float
    high: float
    n: int
    confidence: float
    """their mean probability"""
    accuracy: float
    """the share of them that is right"""


class Residuals(NamedTuple):
    """How predictions of one quantity differ from the truth."""

    name: str
    edges: list[float]
    """of intervals of predicted minus true values"""
    counts: list[int]
    """samples in each interval"""
    points: list[tuple[float, float]]
    """true and predicted values of some samples"""


def each_of(task: str, names: Sequence[str], hits: Hits) -> list[dict[str, Any]]:
    """A row for each class or label, by headings; None where a figure is not defined."""
    counts = zip(*(each.long().tolist() for each in hits), strict=True)
    return [_hits(task, name, *found) for name, found in zip(names, counts, strict=True)]


def quantities(names: Sequence[str], z: Array, y: Array) -> list[dict[str, Any]]:
    """A row for each quantity."""
    return [_quantity(name, z[:, k : k + 1], y[:, k : k + 1]) for k, name in enumerate(names)]


def _hits(task: str, name: str, both: int, true: int, said: int) -> dict[str, Any]:
    what = {"classification": ("class", "samples"), "multilabel": ("label", "samples with it")}
    one, all_of_it = what.get(task, ("class", "pixels"))
    found = {one: name, all_of_it: true, "predicted": said}
    overlap = _share(2 * both, true + said)
    if task == "segmentation":
        return {**found, "IoU": _share(both, true + said - both), "Dice": overlap}
    return {**found, "precision": _share(both, said), "recall": _share(both, true), "F1": overlap}


def _quantity(name: str, z: Array, y: Array) -> dict[str, Any]:
    usual = metrics_to_measure("regression", (), None)
    measured = score(torch.from_numpy(z), torch.from_numpy(y), usual, "regression")
    figures = {m.label: measured.get(m.name) for m in usual if m.column}
    mean, bias = (float(v.mean()) for v in (y.astype(np.float64), z.astype(np.float64) - y))
    return {"quantity": name, "mean": mean, "mean error": bias, **figures}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def certainty(task: str, probabilities: Array, z: Array, y: Array) -> tuple[Array, Array]:
    """The probability of each prediction, of a sample, label or pixel, and whether it is right."""
    if task == "multilabel":
        return np.maximum(probabilities, 1 - probabilities).ravel(), ((z > 0) == (y > 0.5)).ravel()
    return probabilities.max(1).ravel(), (z.argmax(1) == y).ravel()


def binned(sure: Array, right: Array) -> Array:
    """[3, bins] for equal intervals of probability: predictions, the sum of their probabilities, and those right."""
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return np.stack([np.bincount(place, weights, BINS) for weights in (None, sure, right)])


def reliability(sums: Array) -> list[Bin]:
    """The intervals that hold predictions."""
    held = [(k, *column) for k, column in enumerate(sums.T.tolist()) if column[0]]
    return [Bin(k / BINS, (k + 1) / BINS, int(n), sure / n, right / n) for k, n, sure, right in held]


def residuals(names: Sequence[str], z: Array, y: Array) -> list[Residuals]:
    """Of each quantity."""
    found: list[Residuals] = []
    for name, said, true in zip(names, z.T.astype(np.float64), y.T.astype(np.float64), strict=True):
        counts, edges = np.histogram((said - true)[np.isfinite(said)], INTERVALS)
        some = np.flatnonzero(np.isfinite(said))[:: -(-len(true) // POINTS)]
        points = [(float(true[i]), float(said[i])) for i in some]
        found.append(Residuals(name, edges.tolist(), counts.tolist(), points))
    return found


SIDE, MARGIN = 360, 50
"""of the pictures, in pixels"""


def page_of(
    *, title: str, task: str, intro: str, figures: Sequence[tuple[str, str]], classes: Sequence[str], judged: Any
) -> str:
    """`judged` is as `judging.Judged`."""
    return render_judged(
        title=title,
        intro=intro,
        figures=figures,
        classes=classes,
        judged=judged,
        counted={"classification": "samples", "segmentation": "pixels", "multilabel": "labels"}.get(task, ""),
        head=list(judged.each[0]),
        rows=[[_cell(value, task) for value in row.values()] for row in judged.each],
        pictures=[_picture(each) for each in judged.residuals],
    )


def _cell(value: Any, task: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if task == "regression" else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else value


def _picture(found: Any) -> dict[str, Any]:
    """Pixels of a quantity's two drawings: predicted over true values, and how frequent errors are."""
    values = [v for point in found.points for v in point] or [0.0]
    low, wide = min(values), (max(values) - min(values)) or 1.0
    most = max(found.counts) or 1
    bars = [(MARGIN + k * SIDE / len(found.counts), SIDE * n / most, n) for k, n in enumerate(found.counts)]
    return {
        "name": found.name,
        "points": [(MARGIN + SIDE * (t - low) / wide, 30 + SIDE - SIDE * (s - low) / wide) for t, s in found.points],
        "values": [(SIDE * k / 4, f"{low + wide * k / 4:.4g}") for k in range(5)],
        "bars": bars,
        "width": SIDE / len(found.counts),
        "errors": [(SIDE * k / 4, f"{e:.3g}") for k, e in enumerate(_quarters(found.edges))],
    }


def _quarters(edges: Sequence[float]) -> list[float]:
    return [edges[0] + (edges[-1] - edges[0]) * k / 4 for k in range(5)]


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
    usual = metrics_to_measure(task, (), None)
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
        intro=" ".join([measured_on(judged), *_floor(model)]),
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
        metric = main_metric(model.card.get("metric"), model.card["task"])
    except ConfigError:  # of a package that is not installed here
        return []
    known = isinstance(floor, float)
    return [f"In the run, a model that ignores its inputs had {metric.label} {metric.form(floor)}."] if known else []
