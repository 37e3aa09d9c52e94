"""A run's models, made exactly as its evaluations made them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..app.inputs import with_remembered
from ..app.launch import data_folder
from ..app.prepare import divide, plan_for
from ..contract.method import record_types
from ..data.dataset import Dataset
from ..data.federated import FederatedData, clients_at_sites, task_at_sites
from ..data.own.description import MISSING, PARTS, Description, Features, read_description
from ..data.own.values import cell_text
from ..data.preprocessing import Fitted, fit, from_state, sums_from_json, to_state
from ..disk.files import read_json
from ..engine.client.jobs import make_personal_model, restore_trained_model
from ..engine.client.scoring import evaluate_model
from ..engine.host import use_one_thread
from ..engine.kernels.native.autograd import accelerate, without_acceleration
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench, broadcasts
from ..errors import ConfigError, DataError, RunError, pluralize
from ..memory import align
from ..models.base import Task
from ..models.split import channels_last
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.manifest import name_at_sites
from ..runs.query import Run, client_label
from ..settings.choices import OWN, Choice
from ..settings.experiment import Experiment, experiment_from
from ..settings.fields import dump
from ..tasks.base import DEFAULT
from ..tasks.registry import kind_of, objective_of
from .card import FILES, MOST, check_format, make_run_card, output_shape
from .inputs import Inputs
from .loading import load_weights, make_answer
from .model import Format, PackedModel, Prediction, TrainedModel, cast_classes
from .network import (
    InferenceModule,
    build_preprocessing,
    decode_outputs,
    describe_network,
    is_ours,
    layout,
    onnx_metadata,
    pack_weights,
    to_onnx,
    trace_program,
)
from .programs import load_program

if TYPE_CHECKING:
    from .quality import Importances

DEPLOYED = "flower"
"""the engine of runs with sites; in a simulation of sites, all clients are here"""
FACTS = ("shape", "classes", "vocabulary", "sizes", "kind")
"""facts that sites report about each client's data"""


class Models:
    """All models of one run.

    `Run.model` and similar methods use it. Some methods make a client's model from its samples, so the run's data is
    read once: a script that needs the models of many clients should keep one `Models`.

    Args:
        run: The run.
        data_dir: Where public data sets are, if not where the run looked for them.

    >>> models = Models(run)
    >>> [models.of(client).score(patients, diagnoses) for client in range(2)]
    [1.0, 1.0]
    """

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        self.run = run
        self._data_dir = data_dir
        self.deployed = run.manifest["experiment"]["engine"]["kind"] == DEPLOYED
        self._checkpoints: dict[tuple[str, ...], Checkpoint] = {}

    @cached_property
    def experiment(self) -> Experiment:
        return with_remembered(experiment_from(self.run.manifest["experiment"]), self.run.path)

    @cached_property
    def data(self) -> FederatedData:
        manifest = self.run.manifest
        if self.deployed:
            refuse_deployed(self.run)
        data = divide(self.experiment, data_folder(self._data_dir or manifest["data_dir"]))
        if (now := data.summary.hash) != (before := manifest["partition"]["hash"]):
            raise RunError(f"{self.run.path} was run on partition {before[:12]}, but the data now gives {now[:12]}.")
        return data

    @cached_property
    def _served(self) -> Served:
        return Served(self.run)

    @cached_property
    def plan(self) -> Plan:
        if self.deployed:
            return self._served.plan
        return plan_for(self.experiment, self.data)

    def of(self, client: int, moment: str = "pre", round: str = "last", licence: str = "") -> TrainedModel:
        """The model of the client with this number, after a download or as after its last training."""
        if self.deployed:
            refuse_deployed(self.run, client)
        if moment not in ("pre", "post"):
            raise RunError(f"moment is {moment!r}, but must be 'pre' or 'post'.")
        checkpoint = self.checkpoint(round)
        t = checkpoint.progress.t
        state = checkpoint.states.get(client)
        central = ServerBench(self.plan, t, "evaluate")
        down = broadcasts(self.plan, checkpoint.progress.server, [client], central)[client]
        with use_one_thread():
            if moment == "pre":
                network = make_personal_model(self.plan, client, t, state, down)
            elif state is None:
                raise RunError(
                    f"client {client_label(client, self.run.names)} has not trained in {pluralize(t, 'round')}: "
                    "it only has a model before training."
                )
            else:
                network = restore_trained_model(self.plan, client, t, state, down)
        if network is None:
            raise RunError(f"{self.run.path} kept no post-training models: rerun with evaluate.keep = ['post'].")
        module = require_module(self.plan, network)
        card = make_run_card(
            self.run, self.data.dataset, client=client, moment=moment, t=t, which=round, licence=licence
        )
        return make_model(self.plan, module, card, collect_inputs(self.data, client, card))

    def global_model(self, round: str = "last", licence: str = "") -> TrainedModel:
        """The one model for everybody."""
        checkpoint = self.checkpoint(round)
        t = checkpoint.progress.t
        network = self.plan.method.global_model(checkpoint.progress.server, ServerBench(self.plan, t, "evaluate"))
        if network is None:
            raise RunError(f"{self.run.method} has no global model: each client has its own.")
        if self.plan.fast and self.plan.device == "cpu":
            accelerate(network.body)  # as evaluations do
        if self.deployed:
            served = self._served
            card = make_run_card(self.run, served.dataset, t=t, which=round, licence=licence)
            card |= {"reading": served.describe_tables(), "of": {**card["of"], "numbered": not served.named}}
            return make_model(self.plan, network, card, served.inputs())
        if self.data.fitted is not None and len(self.data.fitted.mean) > 1:
            raise RunError("preprocess.fit is 'client', so a global model has no inputs of its own.")
        card = make_run_card(self.run, self.data.dataset, t=t, which=round, licence=licence)
        return make_model(self.plan, network, card, collect_inputs(self.data, 0, card))

    def adapt(self, x: Any, y: Any, epochs: int = 5) -> TrainedModel:
        """A model for a new client, after `epochs` epochs on its own samples."""
        from .adapting import NewClient

        if not isinstance(epochs, int) or not 0 <= epochs <= 10_000:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"epochs is {epochs!r}, but must be from 0 to 10000.")
        return NewClient(self, x, y).model(epochs)

    def predict(self, samples: Any, client: Any, moment: str, round: str) -> NDArray[Any]:
        """Each sample by its own client's model."""
        is_table = isinstance(samples, Mapping) or hasattr(samples, "columns")
        if is_table and (client is None or isinstance(client, str)):
            columns = [*(samples if isinstance(samples, Mapping) else samples.columns)]
            name = client or self._client_column()
            if name not in columns:
                hint = f"its columns are {', '.join(map(str, columns))}"
                raise DataError(f"client is {name!r}, which is not a column of samples: {hint}.")
            client = samples[name]
        if client is None or isinstance(client, str):
            raise DataError("client must be a name for each sample, because samples are not a table.")
        owners = np.array([self.run.number_of(_plain_name(who)) for who in client], np.int64)
        parts: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for c in np.unique(owners):
            mine = np.flatnonzero(owners == c)
            parts.append((mine, self.of(int(c), moment, round).predict(take_rows(samples, mine))))
        if not parts:
            raise DataError("samples are empty: there is nothing to predict.")
        shape = (len(owners), *parts[0][1].shape[1:])
        predictions = np.empty(shape, np.result_type(*(values.dtype for _, values in parts)))
        for mine, values in parts:
            predictions[mine] = values
        return predictions

    def _client_column(self) -> str:
        path = self.experiment.data.options.get("path") if self.experiment.data.name == OWN else None
        return read_description(Path(path)).client if path else ""

    def rows(self, client: int, part: str) -> ClientRows:
        """A client's samples of this part."""
        if part not in PARTS:
            raise ConfigError(f"part is {part!r}, but must be one of {', '.join(PARTS)}.")
        dataset = self.data.dataset
        rows = getattr(self.data.parts[client], part)
        own = rows
        if dataset.owner is not None and self.data.names:
            owner = dataset.owners.index(self.data.names[client])
            own = np.searchsorted(np.flatnonzero(dataset.owner == owner), rows)
        y = dataset.y[rows]
        if kind_of(dataset.task).one_class:
            y = cast_classes(dataset.classes, dataset.label_type)[y]
        return ClientRows(rows, own, y)

    def importance(self, client: int, part: str, moment: str, round: str, repeats: int, seed: int) -> Importances:
        """Of each feature for a client's model, on its own samples of this part."""
        from .quality import measure_importance

        rows = self.rows(client, part).index
        if not len(rows):
            name = client_label(client, self.run.names)
            raise DataError(f"client {name} has no {part} samples: choose another part of {', '.join(PARTS)}.")
        model = self.of(client, moment, round)
        x = encode_run_samples(self.data, model.inputs, self.data.dataset.x[rows])
        return measure_importance(model, x, self.data.dataset.y[rows], repeats, seed)

    def checkpoint(self, round: str) -> Checkpoint:
        """Read once while its files stay the same: reading it checks the state of every client."""
        key = round, *sorted(p.name for p in (self.run.path / "checkpoint").glob("*.safetensors"))
        if key not in self._checkpoints:
            self._checkpoints = {key: self._checkpoint(round)}
        return self._checkpoints[key]

    def _checkpoint(self, round: str) -> Checkpoint:
        types = record_types(type(self.plan.method))
        kept = Checkpoints(self.run.path / "checkpoint", types)
        if round not in ("last", "best"):
            raise RunError(f"round is {round!r}, but must be 'last' or 'best'.")
        checkpoint = kept.load() if round == "last" else kept.best()
        if checkpoint is None:
            why = "has no checkpoint" if round == "last" else "keeps no best round: evaluate.keep = ['best'] does"
            raise RunError(f"{self.run.path} {why}.")
        return checkpoint


@dataclass(frozen=True)
class ClientRows:
    """Samples of one client."""

    index: NDArray[np.int64]
    """their positions in all of the run's data, from 0: in the table that was passed in, or the rows of its files"""
    own: NDArray[np.int64]
    """their positions in the client's own samples, as in the arrays that were passed in for it"""
    y: NDArray[Any]
    """their labels, in the type that was passed in; quantities in float32, as they are trained on"""


def _plain_name(who: Any) -> str | int:
    """A client's name as it is stored: numpy's and pandas' integers are integers."""
    return int(who) if isinstance(who, np.integer) else cell_text(who)


def take_rows(samples: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of a frame, a mapping of columns, a list or an array."""
    if hasattr(samples, "iloc"):
        return samples.iloc[rows]
    if isinstance(samples, Mapping):
        return {name: take_rows(column, rows) for name, column in samples.items()}
    return [samples[i] for i in rows.tolist()] if isinstance(samples, list | tuple) else samples[rows]


class Served:
    """A deployment's plan and inputs; its classes have the study's names or, where it has none, numbers."""

    def __init__(self, run: Run) -> None:
        experiment = experiment_from(run.manifest["experiment"])
        facts = self._read_facts(run.path / "sites.json")
        options = experiment.data.options if experiment.data.name == OWN else {}
        statistics = options.get("statistics", "")
        self._fitted = fit(*sums_from_json(statistics)) if statistics else None
        self._apart = bool(options) and (self._fitted is None or self._fitted.recipe.options.fit == "client")
        first = next(iter(facts.values()))
        reported = Task(tuple(first["shape"]), first["classes"], first["vocabulary"], first["kind"])
        task = task_at_sites(reported, statistics, experiment.target_range)
        clients = range(run.manifest["experiment"]["clients"])
        sizes = [facts[c]["sizes"] if c in facts else (0, 0, 0) for c in clients]
        self.plan: Plan = plan_for(experiment, clients_at_sites(task, sizes, {}))
        self.named = tuple(options.get("classes", ()))
        classes = self.named or tuple(map(str, range(task.classes)))
        x = np.empty((0, *task.shape))
        self.dataset = Dataset(x, np.empty(0, np.int64), classes, vocabulary=task.vocabulary, task=task.kind)

    def inputs(self) -> ClientInputs:
        """Raw samples of a user's own data; of public data, samples as the networks take them."""
        task = self.plan.data.task
        fitted = self._fitted
        if self._apart:
            raise RunError("each site has its own preprocessing, so a global model has no inputs of its own.")
        if fitted is None:
            inputs = Inputs(task.shape, "int64" if task.vocabulary else "float32")
        else:
            inputs = Inputs(fitted.recipe.shape, _dtype_of(fitted), fitted=from_state(to_state(fitted)))
        return ClientInputs(
            inputs, np.stack([np.zeros(inputs.shape, inputs.dtype), np.ones(inputs.shape, inputs.dtype)])
        )

    def describe_tables(self) -> dict[str, Any]:
        """How to read tables with the columns of the sites' data."""
        if self._fitted is None:
            return {}
        columns = self._fitted.recipe.columns
        kinds = {kind: tuple(c.name for c in columns if c.kind == kind) for kind in ("number", "category", "text")}
        options = self._fitted.recipe.options
        return dump(Description("csv", "", features=Features(**kinds), preprocess=options, classes=self.named))

    @staticmethod
    def _read_facts(path: Path) -> dict[int, dict[str, Any]]:
        """What sites reported about each client's data."""
        content = read_json(path, absent=b"{}")
        try:
            each = {t["client"]: {"kind": DEFAULT, **{k: t[k] for k in FACTS if k in t}} for t in content["facts"]}
            if not each or any(fact.keys() != set(FACTS) for fact in each.values()):
                raise ValueError("facts are missing")
            return each
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged: it does not describe the sites' data.") from error


def refuse_deployed(run: Run, client: int | None = None) -> NoReturn:
    """Say where the personal models of a deployed run are, and how to get one."""
    who = "CLIENT" if client is None else client
    command = f"headwise site export SITE --run {name_at_sites(run.path)} --client {who} --format onnx -o DIR"
    raise RunError(f"{run.path} has its personal models at the sites that trained them: there, use {command}.")


SAMPLES = 32
"""samples on which an exported model must agree with the network"""
TOLERANCE = 1e-4
"""of scores, as a share of the largest if that is above 1; probabilities differ far less"""


class ClientInputs(NamedTuple):
    """A client's preprocessing, and some of its samples, on which exported models are checked."""

    inputs: Inputs
    samples: NDArray[Any]


def make_model(plan: Plan, network: nn.Module, card: dict[str, Any], client: ClientInputs) -> TrainedModel:
    """The network as a model that takes a client's raw samples."""
    inputs, samples = client
    card = {**card, "inputs": inputs.to_plain()}
    prepare = build_preprocessing(inputs)
    last = any(map(channels_last, plan.models))

    @torch.no_grad()
    def answer(x: NDArray[Any]) -> Prediction:
        """In one pass over all samples, as evaluations do: the last bits may depend on the batch."""
        with use_one_thread():
            inner = align(prepare(torch.from_numpy(x)))
            if last and inner.dim() == 4:
                inner = inner.contiguous(memory_format=torch.channels_last)
            scores = evaluate_model(plan, network, inner)
            return Prediction(*(t.numpy() for t in decode_outputs(scores, objective_of(plan.data.task))))

    def pack(format: Format) -> PackedModel:
        on_cpu = plain if plan.device == "cpu" else copy.deepcopy(plain).cpu()
        return _pack(plan, InferenceModule(inputs, on_cpu, plan.data.task), card, samples, format)

    plain = without_acceleration(network.eval())
    return TrainedModel(card, inputs, answer, pack, plain)


def collect_inputs(data: FederatedData, client: int, card: dict[str, Any]) -> ClientInputs:
    """Those of one of the data's clients."""
    inputs = inputs_of(data, client, card["reading"])
    part = data.parts[client]
    return ClientInputs(inputs, encode_run_samples(data, inputs, data.dataset.x[[*part.test, *part.train][:SAMPLES]]))


def inputs_of(data: FederatedData, client: int, reading: dict[str, Any]) -> Inputs:
    dataset = data.dataset
    fitted = data.fitted
    shape = tuple(dataset.x.shape[1:])
    if fitted is None:
        dtype = "uint8" if dataset.mean else "int64" if dataset.vocabulary else "float32"
        return Inputs(shape, dtype, dataset.mean, dataset.std)
    missing = tuple(reading.get("missing", MISSING))
    return Inputs(shape, _dtype_of(fitted), fitted=from_state(to_state(fitted.for_client(client))), missing=missing)


def _dtype_of(fitted: Fitted) -> str:
    return "int64" if fitted.recipe.vocabulary else "uint8" if fitted.recipe.form == "image" else "float64"


def encode_run_samples(data: FederatedData, inputs: Inputs, x: NDArray[Any]) -> NDArray[Any]:
    """A run's samples with categories as the fitted preprocessing numbers them, not as the files have them."""
    x = x.astype(inputs.dtype)
    fitted = data.fitted
    if fitted is None:
        return x
    for column, at in fitted.recipe.list_places():
        if column.kind == "category":
            x[:, at] = fitted.renumber(column.name, x[:, at])
    return x


def _pack(
    plan: Plan, module: InferenceModule, card: dict[str, Any], samples: NDArray[Any], format: Format
) -> PackedModel:
    """A model's file, after checking that the model loaded from it predicts these samples as the network does."""
    check_format(format)
    path = Path(FILES[format])
    with torch.no_grad():
        expected = [t.numpy() for t in module(torch.from_numpy(samples))]
    if format == "onnx":
        if module.inputs.fits_float32:
            samples = samples.astype(np.float32)
            card = {**card, "inputs": {**card["inputs"], "dtype": "float32"}}
        data = to_onnx(trace_program(module, samples), onnx_metadata(card))
        answer = load_program(path, data, output_shape(card))
    else:
        choice = _find_architecture(plan, module.network)
        data = pack_weights(module.network)
        card = {**card, "network": describe_network(choice, plan.data.task)}
        own = None if is_ours(choice) else choice
        answer = make_answer(load_weights(path, card, module.inputs, data, own))
    if len(data) > MOST[path.name]:
        raise RunError(f"{path.name} would have {len(data):,} bytes, but must have at most {MOST[path.name]:,}.")
    for predicted, known in zip(answer(samples), expected, strict=True):
        off = float(np.abs(predicted - known).max(initial=0))
        if not off <= TOLERANCE * max(1.0, float(np.abs(known).max(initial=0))):
            what = f"the exported {format} model differs from the network by {off:.2g}"
            raise RunError(f"{what} on this client's samples.")
    return PackedModel(card, format, data)


def _find_architecture(plan: Plan, network: nn.Module) -> Choice:
    """Which of the run's networks this is."""
    for choice, model in zip(plan.experiment.networks, plan.networks, strict=True):
        if str(network) == str(model) and layout(network.state_dict()) == layout(model.state_dict()):
            return choice
    what = f"a model of {plan.experiment.method.name} is a {type(network).__name__}"
    raise ConfigError(f"format is 'torch', which holds one of a run's networks, but {what}: choose the format onnx.")


def require_module(plan: Plan, network: Any) -> nn.Module:
    if not isinstance(network, nn.Module):
        name = type(plan.method).__name__
        raise RunError(f"{name} gives a function, not a module: make it a Composed to use it later.")
    return network
