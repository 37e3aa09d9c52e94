"""How long a table would take on this machine, extrapolated from short rounds of the methods themselves."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from ..app.prepare import divide, plan_for
from ..app.registry import make
from ..data.federated import FederatedData
from ..data.splits import Parts
from ..engine.driver import drive
from ..engine.events import Event, RoundEnded
from ..engine.executors.local import Serial
from ..engine.host import cores, use_one_thread
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from ..settings.options import Evaluate, Faults, Sampling, Stop

PATIENCE = 0.2
"""CPU seconds for which rounds are repeated"""
MOST_ROUNDS = 20
FEW = 16
"""most samples of a client in the shorter rounds"""
LONGER = 4
"""factor on a client's samples in the longer rounds"""
JUDGED = 100
"""most test samples of a client"""


@dataclass(frozen=True)
class RoundCost:
    """CPU seconds on one core."""

    client: float
    """for each client that trains, whatever it holds: messages, the server's part"""
    sample: float
    """for each training sample, over all epochs"""
    judged: float
    """for each test sample that a model is measured on"""
    adapted: float
    """for each training sample of a measured client, because some methods adapt the download to them"""


class Costs:
    """Estimates running times; divides each data set and times each method on each network once."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._data: dict[str, FederatedData] = {}
        self._round_costs: dict[str, RoundCost] = {}

    def seconds(self, experiment: Experiment) -> float:
        """How long this run would take with its workers, on an otherwise idle machine."""
        data = self._divide(experiment)
        cost = self._round_cost(experiment, data)
        trained = fmean(len(part.train) for part in data.parts)
        judged = fmean(len(part.test) + len(part.val) for part in data.parts)
        evaluate = experiment.evaluate
        share = experiment.sampling.average
        takers = share * len(data)
        everyone = len(data) * sum(m in evaluate.moments for m in ("pre", "global")) / evaluate.every
        sure = experiment.faults.reaction == "stop"
        again = share * (1 - 1 / evaluate.every) if sure else 0  # of the trainings, those that are not measured
        measured = everyone + takers * (1 - again) * ("post" in evaluate.moments)
        per_round = takers * (cost.client + cost.sample * trained)
        per_round += measured * cost.judged * judged + everyone * cost.adapted * trained
        side_by_side = min(experiment.engine.workers.count or cores(), cores())
        return experiment.rounds * per_round / side_by_side

    def _divide(self, experiment: Experiment) -> FederatedData:
        e = experiment
        key = repr((e.data, e.partition, e.split, e.fraction, e.clients, e.data_seed, e.evaluate.validation, e.without))
        if key not in self._data:
            self._data[key] = divide(experiment, self.data_dir)
        return self._data[key]

    def _round_cost(self, experiment: Experiment, data: FederatedData) -> RoundCost:
        e = experiment
        key = repr((e.data, e.method, e.model, e.server_model, e.train, e.privacy, e.engine.kernels))
        if key not in self._round_costs:
            self._round_costs[key] = measure_round(experiment, data)
        return self._round_costs[key]


def measure_round(experiment: Experiment, data: FederatedData) -> RoundCost:
    """Time rounds of a few of the clients: with few samples, with more, and with an evaluation."""
    train = experiment.train
    models = experiment.model or (Choice(make("data", experiment.data).default_model),)
    short = dataclasses.replace(
        experiment,
        model=models,
        clients=None,
        rounds=MOST_ROUNDS,
        train=dataclasses.replace(train, epochs=1, drop_last=False),
        sampling=Sampling(),
        evaluate=Evaluate(moments=(), keep=(), start=False),
        stop=Stop(),
        faults=Faults(),
        without=(),
    )
    largest = sorted(range(len(data)), key=lambda c: -len(data.parts[c].train))
    clients = [data.parts[c] for c in largest[: max(2, len(models))]]
    few = min(train.batch, FEW, *(len(part.train) for part in clients))
    many = min(LONGER * few, *(len(part.train) for part in clients))
    measured = dataclasses.replace(short, evaluate=Evaluate(moments=("pre",), keep=(), start=False))
    judged = fmean(min(JUDGED, len(part.test)) for part in clients)
    times = [[_time_round(e, data, clients, n) / len(clients) for n in (few, many)] for e in (short, measured)]
    (base, longer), (with_test, longer_with_test) = times
    more = max(many - few, 1)
    sample = max(longer - base, 0.0) / more if many > few else base / few
    adapted = max(longer_with_test - longer - with_test + base, 0.0) / more
    return RoundCost(
        client=max(base - sample * few, 0.0),
        sample=sample * (1 if train.steps else train.epochs),
        judged=max(with_test - base - adapted * few, 0.0) / max(judged, 1),
        adapted=adapted,
    )


def _time_round(experiment: Experiment, data: FederatedData, clients: list[Parts], samples: int) -> float:
    """The median CPU seconds of a round in which all of these clients take part with so many samples."""
    parts = [Parts(part.train[:samples], part.val[:0], part.test[:JUDGED]) for part in clients]
    plan = plan_for(experiment, FederatedData(data.dataset, parts))
    ends: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RoundEnded):
            ends.append(time.process_time())

    def is_enough() -> bool:
        return len(ends) > 1 and ends[-1] - ends[0] > PATIENCE

    with use_one_thread():
        drive(plan, Serial(plan), (note,), interrupted=is_enough)
    return median(end - begin for begin, end in pairwise(ends))


def clock(seconds: float) -> str:
    """A duration for people: `45 s`, `12 min`, `3 h`."""
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
