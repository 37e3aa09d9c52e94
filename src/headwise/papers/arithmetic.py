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
from ..engine.host import use_one_thread
from ..engine.plan import Plan
from ..log.schema import Round
from ..models import base
from ..models.split import SplitModel
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from ..settings.options import Evaluate
from .cells import Ask, experiment_of, recipe_of
from .tables import Column, CountedOn, Printed, find

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
            return CLAIMS[ask.name]()[method], printed, TWO_DIGITS


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


CNN = Choice("cnn")
CIFAR10 = CountedOn((3, 32, 32), 10, own=1, clients=2)
CIFAR100 = CountedOn((3, 32, 32), 100, own=100, clients=2)


@cache
def _sizes() -> dict[str, float]:
    """FedGMH's text, from our model and messages."""
    network = build(CNN, CIFAR10)
    model = weight(network) / KB
    body = weight(network.body) / KB
    psi = (model - body) / SCALAR  # one byte for each parameter of the head
    label = SCALAR / KB
    fedgmh = Experiment(method=Choice("fedgmh"), model=(CNN,))
    head, vector = (size / KB for size in messages(fedgmh, CIFAR10))
    return {
        "4-layer CNN model size KB": model,
        "feature extractor KB": body,
        "psi vector KB": psi,
        "one mean feature vector KB": vector - label,
        "upload with 100 labels KB": messages(fedgmh, CIFAR100)[1] / KB,
        "of which labels KB": 100 * label,
        "download with 100 labels KB": 100 * head,
        "extra storage with 100 labels %": (100 * head + psi) / model * 100,
        "extra storage of a two-model method %": model / model * 100,
        "extra storage of a multi-extractor method %": body / model * 100,
    }


def _gains() -> dict[str, float]:
    """FedGH over FedProto, in percent of FedProto's accuracy; and the traffic that it saves."""
    sizes = ("N=10 C=100%", "N=50 C=20%", "N=100 C=10%")
    traffic = [_mean("fedgh/3", m, ["CIFAR-100 KB to target"]) for m in ("FedGH", "FedProto")]
    return {
        "model-homogeneous CIFAR-10, % relative to FedProto average": _gain(
            "fedgh/1", *(f"{n} CIFAR-10" for n in sizes)
        ),
        "model-homogeneous CIFAR-100": _gain("fedgh/1", *(f"{n} CIFAR-100" for n in sizes)),
        "model-heterogeneous CIFAR-10": _gain("fedgh/3", "CIFAR-10 accuracy"),
        "model-heterogeneous CIFAR-100": _gain("fedgh/3", "CIFAR-100 accuracy"),
        "communication saving vs FedProto, CIFAR-100 (%)": (1 - traffic[0] / traffic[1]) * 100,
    }


def _falls() -> dict[str, float]:
    """FedAH's lead, and the points that methods lose when clients drop out."""
    lead = [_mean("fedah/1", m, ["CIFAR-100 Dir(0.1)"]) for m in ("FedAH", "FedALA")]
    falls = {
        f"{m} drop rho=1 -> rho~U[0.1,1] (points)": _mean("fedah/4", m, ["rho=1"])
        - _mean("fedah/4", m, ["rho~U[0.1,1]"])
        for m in ("pFedMe", "Ditto")
    }
    return {"FedAH minus FedALA, CIFAR-100, Dir(0.1) (absolute points)": lead[0] - lead[1], **falls}


def _gain(table: str, *columns: str) -> float:
    return (_mean(table, "FedGH", columns) / _mean(table, "FedProto", columns) - 1) * 100


def _mean(table: str, method: str, columns: Sequence[str]) -> float:
    printed = [find(table)[1].cell(method, c).mean for c in columns]
    return fmean(v for v in printed if v is not None)


PRINTED: dict[str, Callable[[], dict[str, float]]] = {"fedgh/text": _gains, "fedah/text": _falls}
"""claims that follow from printed tables alone"""
CLAIMS: dict[str, Callable[[], dict[str, float]]] = {"fedgmh/sizes": _sizes, **PRINTED}
"""every claim in a text, computed from our models and messages or from printed tables"""


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
    with use_one_thread():
        drive(plan, Serial(plan), (keep,))
    last = rows[-1]
    clients = len(plan.data)
    return last["bytes_down"] / clients, last["bytes_up"] / clients


def build(choice: Choice, task: CountedOn) -> SplitModel:
    return make("model", choice).build(base.Task(task.shape, task.classes)).eval()


def weight(module: nn.Module) -> int:
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
