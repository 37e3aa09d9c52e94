"""Numbers that need no training: sizes of messages and models, and claims that follow from printed numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

import numpy as np
from torch import nn

from ..app.registry import make
from ..contract.formulas import evaluate
from ..data.dataset import Dataset
from ..data.federated import FederatedData
from ..data.splits import Parts
from ..engine.driver import drive
from ..engine.events import Event, RoundEnded
from ..engine.executors.local import Serial
from ..engine.host import one_thread
from ..engine.plan import Plan
from ..log.schema import Round
from ..models import base
from ..models.split import SplitModel
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from ..settings.options import Evaluate
from .cells import Ask, experiment_of, recipe_of
from .schema import Column, CountedOn, Printed
from .tables import find

KB = 1024
MB = 2**20
SCALAR = 4
"""bytes of a float32, and of a label"""
TWO_DIGITS = 0.005
"""sizes and claims are printed with two decimals, even where our copy lost trailing zeros"""


def compute(ask: Ask, method: str, column: Column) -> tuple[float | str, Printed, float]:
    """Our value, the printed one, and the tolerance."""
    printed = ask.table.cell(method, column.name)
    match column.measure:
        case "traffic":
            return _count_bytes(ask, method, column) / KB, printed, printed.last_digit / 2
        case "total":
            assert column.task is not None
            clients_rounds = column.task.clients * (ask.table.cell(method, column.rounds).mean or 0)
            return _count_bytes(ask, method, column) / KB * clients_rounds, printed, printed.last_digit / 2
        case "parameters":
            return _count_bytes(ask, method, column) / SCALAR, _formula(ask, method, column), 0.0
        case "width":
            both = [str(widths(_network(method, classes))[column.layer]) for classes in (10, 100)]
            return "/".join(dict.fromkeys(both)), printed, 0.0
        case "size":
            return weight(_network(method, 10)) / MB, printed, TWO_DIGITS
        case _:
            return CLAIMS[ask.name, method](), printed, TWO_DIGITS


def agreement(ask: Ask, column: Column) -> str:
    """The verdict if the two agree; a claim about printed tables alone involves no number of ours."""
    if column.measure == "total":
        return "agrees: printed rounds, our messages"
    return "follows from the printed tables" if ask.name in PRINTED else "exact"


def _count_bytes(ask: Ask, method: str, column: Column) -> float:
    """Bytes per client and round, down and up, without what the paper does not count."""
    recipe = recipe_of(ask, method)
    task = column.task
    assert task is not None
    experiment = experiment_of(ask, column, recipe)
    return sum(messages(experiment, task)) - evaluate(recipe.uncounted, _symbols(experiment, task)) * SCALAR


def _formula(ask: Ask, method: str, column: Column) -> Printed:
    """The printed formula with its symbols filled in."""
    assert column.task is not None
    printed = ask.table.cell(method, column.name)
    experiment = experiment_of(ask, column, recipe_of(ask, method))
    value = round(evaluate(printed.text, _symbols(experiment, column.task)))
    return Printed(f"{printed.text} = {value:,}", value)


def _symbols(experiment: Experiment, task: CountedOn) -> dict[str, float]:
    """The symbols in the tables' formulas and in `uncounted`."""
    model = build(experiment.model[0], task)
    whole = weight(model) / SCALAR
    share = weight(model.body) / weight(model)
    others = experiment.method.options.get("M", 0)
    bias = sum(p.numel() for name, p in model.head.named_parameters() if name.endswith("bias"))
    counts = {"c": task.own, "bias": bias, "M": others, "n": others, "C": others}
    return {**counts, "Sigma": whole, "alpha": share, "alpha_f": share}


def _network(name: str, classes: int) -> SplitModel:
    """FedGH's `CNN-1` to `CNN-5`."""
    return build(Choice.parse(f"fedgh-cnn:{name.removeprefix('CNN-')}", "model"), CountedOn((3, 32, 32), classes, 2))


def _mean(table: str, method: str, columns: Sequence[str]) -> float:
    """The mean of a method's printed values in these columns."""
    printed = [find(table)[1].cell(method, c).mean for c in columns]
    return fmean(v for v in printed if v is not None)


def _gain(table: str, *columns: str) -> float:
    """FedGH over FedProto, in percent of FedProto's accuracy."""
    return (_mean(table, "FedGH", columns) / _mean(table, "FedProto", columns) - 1) * 100


def _fall(method: str) -> float:
    """Points that a method loses when clients drop out."""
    return _mean("fedah/4", method, ["rho=1"]) - _mean("fedah/4", method, ["rho~U[0.1,1]"])


def _traffic_saved() -> float:
    """How much less FedGH sends than FedProto until both reach the target, in percent."""
    column = ["CIFAR-100 KB to target"]
    return (1 - _mean("fedgh/3", "FedGH", column) / _mean("fedgh/3", "FedProto", column)) * 100


CNN = Choice("cnn")
CIFAR10 = CountedOn((3, 32, 32), 10, own=1, clients=2)
CIFAR100 = CountedOn((3, 32, 32), 100, own=100, clients=2)


def _model() -> float:
    return weight(build(CNN, CIFAR10)) / KB


def _body() -> float:
    return weight(build(CNN, CIFAR10).body) / KB


def _psi() -> float:
    """One byte for each parameter of the head."""
    return (weight(build(CNN, CIFAR10)) - weight(build(CNN, CIFAR10).body)) / SCALAR / KB


def _message_sizes(task: CountedOn) -> tuple[float, float]:
    down, up = messages(Experiment(method=Choice("fedgmh"), model=(CNN,)), task)
    return down / KB, up / KB


LABEL = SCALAR / KB
SIZES: dict[str, Callable[[], float]] = {
    "4-layer CNN model size KB": _model,
    "feature extractor KB": _body,
    "psi vector KB": _psi,
    "one mean feature vector KB": lambda: _message_sizes(CIFAR10)[1] - LABEL,
    "upload with 100 labels KB": lambda: _message_sizes(CIFAR100)[1],
    "of which labels KB": lambda: 100 * LABEL,
    "download with 100 labels KB": lambda: 100 * _message_sizes(CIFAR10)[0],
    "extra storage with 100 labels %": lambda: (100 * _message_sizes(CIFAR10)[0] + _psi()) / _model() * 100,
    "extra storage of a two-model method %": lambda: _model() / _model() * 100,
    "extra storage of a multi-extractor method %": lambda: _body() / _model() * 100,
}
HOMOGENEOUS = ("N=10 C=100%", "N=50 C=20%", "N=100 C=10%")
GAINS: dict[str, Callable[[], float]] = {
    "model-homogeneous CIFAR-10, % relative to FedProto average": lambda: _gain(
        "fedgh/1", *(f"{n} CIFAR-10" for n in HOMOGENEOUS)
    ),
    "model-homogeneous CIFAR-100": lambda: _gain("fedgh/1", *(f"{n} CIFAR-100" for n in HOMOGENEOUS)),
    "model-heterogeneous CIFAR-10": lambda: _gain("fedgh/3", "CIFAR-10 accuracy"),
    "model-heterogeneous CIFAR-100": lambda: _gain("fedgh/3", "CIFAR-100 accuracy"),
    "communication saving vs FedProto, CIFAR-100 (%)": _traffic_saved,
}
FALLS: dict[str, Callable[[], float]] = {
    "FedAH minus FedALA, CIFAR-100, Dir(0.1) (absolute points)": lambda: (
        _mean("fedah/1", "FedAH", ["CIFAR-100 Dir(0.1)"]) - _mean("fedah/1", "FedALA", ["CIFAR-100 Dir(0.1)"])
    ),
    "pFedMe drop rho=1 -> rho~U[0.1,1] (points)": lambda: _fall("pFedMe"),
    "Ditto drop rho=1 -> rho~U[0.1,1] (points)": lambda: _fall("Ditto"),
}
PRINTED = {"fedgh/text": GAINS, "fedah/text": FALLS}
"""claims that follow from printed tables alone"""
CLAIMS = {
    (table, what): how for table, claims in {"fedgmh/sizes": SIZES, **PRINTED}.items() for what, how in claims.items()
}
"""every claim in a text, and how to compute it from our models and messages or from printed tables"""


def messages(experiment: Experiment, task: CountedOn) -> tuple[float, float]:
    """Bytes down and up per client in the second round, when every client has replied once."""
    rows: list[Round] = []

    def keep(event: Event) -> None:
        if isinstance(event, RoundEnded):
            rows.append(event.row)

    counted = Experiment(rounds=2, train=experiment.train, evaluate=Evaluate(every=2, moments=()))
    plan = Plan(
        counted,
        method=make("method", experiment.method),
        models=tuple(build(m, task) for m in experiment.model),
        data=_federation(task).clients(),
        server_model=experiment.server_model and build(experiment.server_model, task),
    )
    with one_thread():
        drive(plan, Serial(plan), (keep,))
    last = rows[-1]
    clients = len(plan.data)
    return last["bytes_down"] / clients, last["bytes_up"] / clients


def build(choice: Choice, task: CountedOn) -> SplitModel:
    return make("model", choice).build(base.Task(task.shape, task.classes)).eval()


def weight(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def widths(module: nn.Module) -> list[int]:
    """Filters or units of each layer, from the first to the last."""
    return [p.shape[0] for name, p in module.named_parameters() if name.endswith("weight")]


@cache
def _federation(task: CountedOn) -> FederatedData:
    """Every client holds two random samples of each of its classes."""
    own = [(np.arange(task.own) + c * task.own) % task.classes for c in range(task.clients)]
    y = np.repeat(np.concatenate(own), 2).astype(np.int64)
    x = np.random.default_rng(0).standard_normal((len(y), *task.shape), dtype=np.float32)
    parts = [Parts(block, block[:0], block[:0]) for block in np.split(np.arange(len(y)), task.clients)]
    return FederatedData(Dataset(x, y, tuple(map(str, range(task.classes)))), parts)
