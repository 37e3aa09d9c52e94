"""How good a model is on samples with known targets: its metrics, each class or quantity, and a page about it;
and how much worse it gets if the values of one feature are shuffled among samples.

Samples come batch by batch, since a file may have more of them than memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..disk.files import write_bytes
from ..engine.client.scoring import score, score_predictions
from ..errors import ConfigError, DataError, HeadwiseError, explain_missing, pluralize
from ..log.metrics import Hits, Metric, Predictions, Score, Tally, is_majority, main_metric, metrics, metrics_to_measure
from ..report.page import fill_template
from ..settings.experiment import OWN, Choice
from ..settings.foreign import parse_foreign
from ..tasks.registry import kind_of
from .model import Prediction, TrainedModel
from .samples import encode_targets, read_batches

Array = NDArray[Any]


class Totals:
    """Counts and means of all batches; keeps their scores only for quantities, and for metrics such as AUC."""

    def __init__(self, task: str, metrics: Sequence[Metric]) -> None:
        self.task = task
        self.kind = kind_of(task)
        self.metrics = metrics
        self.tally = Tally(task)
        self.bins = np.zeros((3, BINS))
        self._keeps_scores = self.kind.quantitative or any(m.needs == "all" for m in metrics)
        self._batches = list[tuple[Array, Array]]()
        self._sums = dict[str, float]()

    def add(self, prediction: Prediction, y: Array) -> None:
        batch = Predictions(torch.from_numpy(prediction.scores), torch.from_numpy(y), self.task)
        means = self._metrics_on("mean")
        scores = score_predictions(batch, means)
        self._sums = {m.name: self._sums.get(m.name, 0.0) + scores[m.name] * batch.n for m in means}
        self.tally.add(batch)
        if not self.kind.quantitative:
            self.bins += count_in_bins(*measure_certainty(self.task, prediction, y))
        if self._keeps_scores:
            self._batches.append((prediction.scores, y))

    @cached_property
    def kept(self) -> tuple[Array, Array]:
        """All scores and targets, where they are kept."""
        z, y = (np.concatenate(each) for each in zip(*self._batches, strict=True))
        self._batches.clear()
        return z, y

    def scores(self) -> Score:
        scores = score_predictions(self.tally, self._metrics_on("counts"))
        scores |= {name: total / self.tally.n for name, total in self._sums.items()}
        if self._keeps_scores:
            z, y = map(torch.from_numpy, self.kept)
            scores |= score_predictions(Predictions(z, y, self.task), self._metrics_on("all"))
        return scores

    def _metrics_on(self, needs: str) -> list[Metric]:
        return [m for m in self.metrics if m.needs == needs]


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


def make_class_rows(task: str, names: Sequence[str], hits: Hits) -> list[dict[str, Any]]:
    """A row for each class or label, by headings; None where a figure is not defined."""
    counts = zip(*(each.long().tolist() for each in hits), strict=True)
    return [_class_row(task, name, *count) for name, count in zip(names, counts, strict=True)]


def make_quantity_rows(task: str, names: Sequence[str], z: Array, y: Array) -> list[dict[str, Any]]:
    return [_quantity_row(task, name, z[:, k : k + 1], y[:, k : k + 1]) for k, name in enumerate(names)]


def _class_row(task: str, name: str, both: int, true: int, predicted: int) -> dict[str, Any]:
    kind = kind_of(task)
    row = {kind.noun: name, kind.counted if kind.exclusive else "samples with it": true, "predicted": predicted}
    overlap = _share(2 * both, true + predicted)
    if kind.per_pixel:
        return {**row, "IoU": _share(both, true + predicted - both), "Dice": overlap}
    return {**row, "precision": _share(both, predicted), "recall": _share(both, true), "F1": overlap}


def _quantity_row(task: str, name: str, z: Array, y: Array) -> dict[str, Any]:
    default = metrics_to_measure(task, (), None)
    scores = score(torch.from_numpy(z), torch.from_numpy(y), default, task)
    figures = {m.label: scores.get(m.name) for m in default if m.column}
    mean = float(y.astype(np.float64).mean())
    bias = float((z.astype(np.float64) - y).mean())
    return {"quantity": name, "mean": mean, "mean error": bias, **figures}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def measure_certainty(task: str, prediction: Prediction, y: Array) -> tuple[Array, Array]:
    """The probability of each prediction, of a sample, label or pixel, and whether it is right."""
    z, probabilities = prediction
    if not kind_of(task).exclusive:
        return np.maximum(probabilities, 1 - probabilities).ravel(), ((z > 0) == (y > 0.5)).ravel()
    return probabilities.max(1).ravel(), (z.argmax(1) == y).ravel()


def count_in_bins(sure: Array, right: Array) -> Array:
    """[3, bins] for equal intervals of probability: predictions, the sum of their probabilities, and those right."""
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return np.stack([np.bincount(place, weights, BINS) for weights in (None, sure, right)])


def list_bins(sums: Array) -> list[Bin]:
    """The intervals that hold predictions."""
    held = [(k, *column) for k, column in enumerate(sums.T.tolist()) if column[0]]
    return [Bin(k / BINS, (k + 1) / BINS, int(n), sure / n, right / n) for k, n, sure, right in held]


def residuals(names: Sequence[str], z: Array, y: Array) -> list[Residuals]:
    rows: list[Residuals] = []
    for name, predicted, true in zip(names, z.T.astype(np.float64), y.T.astype(np.float64), strict=True):
        finite = np.isfinite(predicted)
        counts, edges = np.histogram((predicted - true)[finite], INTERVALS)
        some = np.flatnonzero(finite)[:: -(-len(true) // POINTS)]
        points = [(float(true[i]), float(predicted[i])) for i in some]
        rows.append(Residuals(name, edges.tolist(), counts.tolist(), points))
    return rows


SIDE = 360
MARGIN = 50
"""of the pictures, in pixels"""


def _cell(value: Any, task: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if kind_of(task).quantitative else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else value


def _picture(quantity: Residuals) -> dict[str, Any]:
    """Pixels of a quantity's two drawings: predicted over true values, and how frequent errors are."""
    values = [v for point in quantity.points for v in point] or [0.0]
    low = min(values)
    wide = (max(values) - low) or 1.0
    most = max(quantity.counts) or 1
    width = SIDE / len(quantity.counts)
    edges = quantity.edges
    quarters = [edges[0] + (edges[-1] - edges[0]) * k / 4 for k in range(5)]
    return {
        "name": quantity.name,
        "points": [(MARGIN + SIDE * (t - low) / wide, 30 + SIDE - SIDE * (s - low) / wide) for t, s in quantity.points],
        "values": [(SIDE * k / 4, f"{low + wide * k / 4:.4g}") for k in range(5)],
        "bars": [(MARGIN + k * width, SIDE * n / most, n) for k, n in enumerate(quantity.counts)],
        "width": width,
        "errors": [(SIDE * k / 4, f"{e:.3g}") for k, e in enumerate(quarters)],
    }


class Quality(NamedTuple):
    scores: Score
    clients: list[str]
    """whose samples these were, where the data has clients"""
    each: list[dict[str, Any]]
    """figures of each class, label or quantity"""
    confusion: list[list[int]]
    """samples or pixels, true classes by row and predicted ones by column; empty for labels and quantities"""
    bins: list[Bin]
    """how certain the model is; empty for quantities"""
    calibration: float | None
    """mean difference of confidence and accuracy, weighted by predictions (expected calibration error)"""
    residuals: list[Residuals]
    """of quantities"""

    def to_plain(self) -> dict[str, Any]:
        bins = [b._asdict() for b in self.bins]
        return {**self._asdict(), "bins": bins, "residuals": [r._asdict() for r in self.residuals]}


class HeldOut(NamedTuple):
    """Which samples of some data a model was not trained on."""

    rows: NDArray[np.bool_]
    """of each sample in the order of the files, whether it was a test sample"""
    y: Array
    """the targets of all samples, by which the files are recognized"""


def find_held_out(model: TrainedModel, data: Path) -> HeldOut | None:
    """The test samples of these files, if they are the data of the model's run; None if that is not known."""
    from ..app.prepare import divide

    division = model.card["training"].get("division")
    if data.suffix.lower() != ".toml" or not isinstance(division, dict) or model.card["training"]["data"] != OWN:
        return None
    try:
        settings = parse_foreign(division)  # the card may be somebody else's
        federated = divide(replace(settings, data=Choice(OWN, {"path": str(data)})), data.parent)
    except HeadwiseError:  # they are other data
        return None
    if federated.summary.hash != model.card["training"].get("partition"):
        return None
    rows = np.zeros(len(federated.dataset.y), bool)
    for part in federated.parts:
        rows[part.test] = True
    return HeldOut(rows, federated.dataset.y)


def measure_quality(
    model: TrainedModel,
    data: Path,
    *,
    on_progress: Callable[[int], None] = lambda n: None,
    client: str = "",
    held_out: HeldOut | None = None,
) -> Quality:
    """Measure the model on these files, which must have the target.

    Scores are kept only for metrics that need all of them, such as AUC: a file may have more than memory holds.
    """
    task = model.card["task"]
    names = model.classes
    totals = Totals(task, _metrics_of(model))
    clients = set[str]()
    n = 0
    at = 0
    for batch in read_batches(data, model, labelled=True, client="" if held_out else client):
        assert batch.y is not None  # because of `labelled`
        kept = np.ones(len(batch.y), bool)
        if held_out is not None:
            rows = slice(at, at + len(batch.y))
            if not np.array_equal(held_out.y[rows], batch.y):
                raise DataError(f"{data} does not have the samples of the run in their order: evaluate a copy of it.")
            kept = held_out.rows[rows] & np.array([not client or name == client for name in batch.clients])
            at += len(batch.y)
        if not kept.any():
            continue
        clients |= {name for name, is_kept in zip(batch.clients, kept, strict=True) if name and is_kept}
        prediction = model.infer(batch.raw)
        totals.add(Prediction(*(each[kept] for each in prediction)), batch.y[kept])
        n += int(kept.sum())
        on_progress(n)
    if not n:
        raise DataError(f"{data} has no samples to measure{f' of client {client!r}' if client else ''}.")
    scores = totals.scores()
    who = sorted(clients)
    if kind_of(task).quantitative:
        z, y = totals.kept
        return Quality(scores, who, make_quantity_rows(task, names, z, y), [], [], None, residuals(names, z, y))
    tally = totals.tally
    bins = list_bins(totals.bins)
    confusion = tally.confusion.long().tolist() if kind_of(task).exclusive else []
    error = sum(b.n * abs(b.confidence - b.accuracy) for b in bins) / sum(b.n for b in bins)
    return Quality(scores, who, make_class_rows(task, names, tally.hits), confusion, bins, error, [])


def score_targets(model: TrainedModel, z: Array, y: Array) -> Score:
    return score(torch.from_numpy(z), torch.from_numpy(y), _metrics_of(model), model.card["task"])


def score_samples(model: TrainedModel, raw: Any, y: Any) -> float:
    metric = main_metric(model.card.get("metric"), model.card["task"])
    return score_encoded(model, metric, *encode_pair(model, raw, y))


def score_encoded(model: TrainedModel, metric: Metric, x: Array, y: Array) -> float:
    """The metric on encoded samples and targets."""
    scores = score(torch.from_numpy(model.answer(x).scores), torch.from_numpy(y), [metric], model.card["task"])
    if metric.name not in scores:
        raise DataError(f"{metric.label} is not defined for these {len(y)} samples.")
    return scores[metric.name]


def encode_pair(model: TrainedModel, raw: Any, y: Any) -> tuple[Array, Array]:
    """Samples and their labels or quantities as the model and the metrics take them."""
    x = model.encode(raw)
    targets = encode_targets(model.card, label_texts(model, y), lambda i: f"label {i}", in_files=False)
    if len(targets) != len(x):
        raise DataError(f"x has {len(x)} samples and y {len(targets)} labels, but each sample needs one.")
    return x, targets


def label_texts(model: TrainedModel, y: Any) -> Any:
    """Labels as the names of their classes, whatever their type."""
    if not kind_of(model.card["task"]).one_class:
        return y
    place: dict[Any, str] = dict(zip(model.classes_.tolist(), model.classes, strict=True))
    values = np.asarray(y)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise DataError(f"y has the shape {list(values.shape)}, but must have one label for each sample.")
    if values.dtype.kind == "M":
        values = values.astype("datetime64[ns]")
    return np.array([place.get(value, value) for value in values.tolist()], dtype=object)


def _metrics_of(model: TrainedModel) -> list[Metric]:
    """The task's default metrics, and the others in the card, except calibration: the page has its own."""
    task = model.card["task"]
    default = metrics_to_measure(task, (), None)
    measured = (model.card["metrics"] or {}).get("test")
    names = measured if isinstance(measured, dict) else {}
    more = [m for m in metrics() if m.name in names and m.label != "calibration error"]
    return [*default, *(m for m in more if task in m.tasks and m.source == m.name and m not in default)]


def format_scores(quality: Quality) -> list[tuple[str, str]]:
    """Each metric by its label, as tables show it."""
    rows = [(m.label, m.form(quality.scores[m.name])) for m in metrics() if m.name in quality.scores]
    if quality.calibration is not None:
        rows.append(("calibration error", f"{quality.calibration * 100:.1f} %"))
    return rows


def write_page(model: TrainedModel, data: Path, quality: Quality, out: Path) -> None:
    of = model.card["of"]
    task = model.card["task"]
    titles = {"global": "The global model", "adapted": "The adapted model"}
    title = titles.get(of.get("kind", ""), f"The model of client {of.get('name')}")
    page = fill_template(
        "quality.html.j2",
        title=f"{title} on {data.name}",
        intro=" ".join([count_samples(quality), *compare_with_floor(model, quality)]),
        figures=format_scores(quality),
        classes=model.classes,
        quality=quality,
        counted=kind_of(task).counted,
        head=list(quality.each[0]),
        rows=[[_cell(value, task) for value in row.values()] for row in quality.each],
        pictures=[_picture(each) for each in quality.residuals],
    )
    write_bytes(out, page.encode())


def count_samples(quality: Quality) -> str:
    """How many samples, and of how many clients."""
    several = f" of {len(quality.clients)} clients" if len(quality.clients) > 1 else ""
    return f"{pluralize(int(quality.scores['n']), 'sample')}{several}."


def compare_with_floor(model: TrainedModel, quality: Quality) -> list[str]:
    """Sentences about the floor, and whether the model is better than it."""
    try:
        metric = main_metric(model.card.get("metric"), model.card["task"])
    except ConfigError:  # of a package that is not installed here
        return []
    floor = model.card.get("floor")
    of = "the best constant prediction, in the run"
    if is_majority(metric, model.card["task"]) and quality.confusion:
        floor = max(map(sum, quality.confusion)) / sum(map(sum, quality.confusion))
        of = "always the most frequent class of these samples"
    if not isinstance(floor, int | float):
        return ["The floor is not known."]
    sentences = [f"Floor: {metric.label} {metric.form(floor)} ({of})."]
    score = quality.scores.get(metric.name)
    if score is not None and metric.gain(score, floor) <= 0:
        sentences.append(f"No better than the floor: {metric.label} {metric.form(score)}.")
    return sentences


class Importance(NamedTuple):
    feature: str
    mean: float
    """by how much the metric gets worse, on average over the shuffles; about 0 if the model does not need it"""
    std: float
    """how much that varies from shuffle to shuffle"""


@dataclass(frozen=True, repr=False)
class Importances:
    """The importance of each feature, the largest first."""

    metric: Metric
    score: float
    """of the samples as they are"""
    samples: int
    rows: tuple[Importance, ...]

    def __iter__(self) -> Iterator[Importance]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        form = self.metric.form
        width = max(len(row.feature) for row in self.rows)
        head = f"{self.metric.label} {form(self.score)} on {pluralize(self.samples, 'sample')}, without one feature:"
        lines = [f"  {row.feature:{width}}  worse by {form(row.mean)} ± {form(row.std)}" for row in self.rows]
        return "\n".join([head, *lines])

    def frame(self) -> Any:
        """As a pandas DataFrame with the features as its index."""
        with explain_missing("frame needs pandas: pip install pandas."):
            import pandas as pd  # pyright: ignore[reportMissingImports]
        return pd.DataFrame(list(self.rows), columns=["feature", "mean", "std"]).set_index("feature")


def measure_importance(model: TrainedModel, x: NDArray[Any], y: NDArray[Any], repeats: int, seed: int) -> Importances:
    """The importance of each feature on encoded samples and their targets."""
    if not isinstance(repeats, int) or repeats < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"repeats is {repeats!r}, but must be a whole number from 1.")
    if len(x) < 2:
        raise DataError(f"x has {pluralize(len(x), 'sample')}, but shuffling needs at least two.")
    metric = main_metric(model.card.get("metric"), model.card["task"])
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(x)) for _ in range(repeats)]  # the same for all features
    score = score_encoded(model, metric, x, y)
    rows: list[Importance] = []
    for feature, columns in _list_features(model):
        losses: list[float] = []
        for order in orders:
            shuffled = x.copy()
            shuffled[:, columns] = x[order][:, columns]
            losses.append(metric.gain(score, score_encoded(model, metric, shuffled, y)))
        rows.append(Importance(feature, float(np.mean(losses)), float(np.std(losses))))
    return Importances(metric, score, len(x), tuple(sorted(rows, key=lambda row: -row.mean)))


def _list_features(model: TrainedModel) -> list[tuple[str, slice]]:
    """The name and the columns of each feature in encoded samples."""
    fitted = model.inputs.fitted
    if fitted is not None and fitted.recipe.form == "table":
        return [(column.name, slice(at, at + column.width)) for column, at in fitted.recipe.list_places()]
    if len(model.inputs.shape) != 1 or model.inputs.dtype == "int64":
        raise DataError("importance needs samples with features: a table, or arrays of shape [samples, features].")
    return [(str(k), slice(k, k + 1)) for k in range(model.inputs.shape[0])]
