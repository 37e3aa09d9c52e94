"""Preprocessing, network and probabilities as one module, and its two formats.

As ONNX, the whole module becomes a program. The torch format stores the weights of the network, which our own code, or
the user's, builds again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from ..app import registry
from ..data.own.values import BAG, LENGTH
from ..data.preprocessing import Fitted
from ..disk.jsontext import to_json
from ..errors import ConfigError, RunError, shorten
from ..memory import check_memory
from ..models.base import Model, Task
from ..models.network import title
from ..models.split import SplitModel, lay_out
from ..records import Packed, from_bytes, to_bytes
from ..settings.choices import NETWORK, Choice
from ..settings.fields import build
from ..settings.names import find_built_ins
from ..tasks.base import Objective
from ..tasks.registry import objective_of
from .card import check_format
from .inputs import Inputs
from .programs import INPUT, OUTPUTS


class InferenceModule(nn.Module):
    """From encoded samples (`Inputs.encode`) to scores and probabilities."""

    def __init__(self, inputs: Inputs, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.inputs = inputs
        self.prepare = build_preprocessing(inputs)
        self.network = network
        self.objective = objective_of(task)  # not in `forward`: while torch traces, it would remember fake tensors

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return decode_outputs(self.network(self.prepare(x)), self.objective)


def decode_outputs(outputs: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """The outputs as scores, and the probabilities of classes, labels or pixels; quantities stand in both places."""
    return objective.in_target_units(outputs), objective.probabilities(outputs)


def build_preprocessing(inputs: Inputs) -> nn.Module:
    """The run's own preprocessing as a module; it gives the same bits."""
    fitted = inputs.fitted
    if fitted is None:
        return Scaling(inputs.mean, inputs.std, torch.float32) if inputs.mean else Casting(inputs.dtype == "int64")
    if fitted.recipe.vocabulary:
        return Casting(True)
    if fitted.recipe.form == "table":
        return Encoding(fitted)
    image = fitted.recipe.form == "image"
    fill = None if image else fitted.fill[0].tolist()
    return Scaling(fitted.mean[0].tolist(), fitted.std[0].tolist(), torch.float64, unit=image, fill=fill)


class Casting(nn.Module):
    """Token numbers stay whole, features become float32."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        return x.long() if self.whole else x.float()


class Scaling(nn.Module):
    """(x - mean) / std for each channel, of bytes after division by 255; NaN becomes `fill`."""

    mean: Tensor
    std: Tensor
    fill: Tensor

    def __init__(
        self,
        mean: tuple[float, ...] | list[float],
        std: tuple[float, ...] | list[float],
        dtype: torch.dtype,
        *,
        unit: bool = True,
        fill: list[float] | None = None,
    ) -> None:
        super().__init__()
        self.unit = unit
        self.fills = fill is not None
        self.dtype = dtype
        for name, values in (("mean", mean), ("std", std), ("fill", fill or [0.0])):
            self.register_buffer(name, torch.tensor(values, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        channels = (1, -1) + (1,) * (x.dim() - 2)
        x = x.to(self.dtype) / 255 if self.unit else x.to(self.dtype)
        if self.fills:
            x = torch.where(x.isnan(), self.fill.view(channels), x)
        return ((x - self.mean.view(channels)) / self.std.view(channels)).float()


class Encoding(nn.Module):
    """Rows of a table, [n, columns] with NaN where a value is missing, as `Fitted.transform` encodes them."""

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        places = fitted.recipe.list_places()
        numbers = [at for c, at in places if c.kind == "number"]
        self.categories = [(at, len(fitted.values[c.name])) for c, at in places if c.kind == "category"]
        self.texts = [(at, c.width) for c, at in places if c.kind == "text"]
        self.buckets = min(fitted.recipe.options.buckets, BAG)
        self.numbers: Tensor
        self.flags: Tensor
        self.order: Tensor
        self.mean: Tensor
        self.std: Tensor
        self.fill: Tensor
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.int64))
        self.register_buffer("flags", torch.tensor(np.flatnonzero(fitted.flags)))
        self.register_buffer("order", torch.tensor(_order(fitted, self.buckets)))
        for name in ("mean", "std", "fill"):
            self.register_buffer(name, torch.tensor(getattr(fitted, name)[0]))

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        if len(self.numbers):
            numbers = x[:, self.numbers]
            missing = numbers.isnan()
            scaled = (torch.where(missing, self.fill, numbers) - self.mean) / self.std
            parts += [scaled.float(), missing[:, self.flags].float()]
        for at, size in self.categories:  # one that is missing or unknown has no place, so its row is zero
            parts.append((x[:, at : at + 1] == torch.arange(size, dtype=x.dtype)).float())
        parts += [_bag(x[:, at : at + width], self.buckets) for at, width in self.texts]
        return torch.cat(parts, 1)[:, self.order]


def _bag(tokens: Tensor, buckets: int) -> Tensor:
    """Bit for bit as `count_words`; word 0 is padding."""
    words = torch.arange(buckets, dtype=tokens.dtype)  # onnxruntime warns of comparisons that it must cast
    counts = (tokens[:, :, None] == words).sum(1).float() * (words > 0)
    norm = counts.sum(1, keepdim=True).sqrt()
    length = torch.full_like(norm, float(LENGTH))  # a tensor: torch divides a number by multiplying with the reciprocal
    return counts.sqrt() * (length / torch.where(norm > 0, norm, length))


def _order(fitted: Fitted, buckets: int) -> list[int]:
    """Where each place of an encoded row is in numbers, flags, categories and texts one after the other."""
    scaled = fitted.recipe.scaled
    flagged = np.cumsum(fitted.flags) - 1
    order = list[int]()
    at = scaled + int(fitted.flags.sum())
    k = 0
    for column, _ in fitted.recipe.list_places():
        if column.kind == "number":
            order += [k, *([scaled + int(flagged[k])] if fitted.flags[k] else [])]
            k += 1
        else:
            width = len(fitted.values[column.name]) if column.kind == "category" else buckets
            order += range(at, at + width)
            at += width
    return order


def is_ours(choice: Choice) -> bool:
    return choice.name in find_built_ins("model")


def describe_network(choice: Choice, task: Task) -> dict[str, Any]:
    """For a card: one of our models by name and numbers, or what the user's own is called."""
    if is_ours(choice):
        model = registry.resolve("model", choice).to_plain()
    else:
        options = choice.options
        name = options.get("called") or str(options.get("factory") or choice.name).replace("\\", "/").split("/")[-1]
        called = title(choice.given) if choice.given is not None else name.split(":")[-1].removesuffix(".py")
        model = {"name": NETWORK, "called": called, "head": options.get("head", "")}
    return {"model": model, "vocabulary": task.vocabulary, "centre": list(task.centre), "spread": list(task.spread)}


def pack_weights(network: nn.Module) -> bytes:
    return to_bytes(Packed({name: t.detach() for name, t in network.state_dict().items()}, {}))


def rebuild(card: Mapping[str, Any], inputs: Inputs, weights: bytes, network: Any = None) -> InferenceModule:
    """The card's network, or `network`, as `hw.fit` takes it, with these weights; `ValueError` if they don't fit."""
    values = from_bytes(weights).tensors
    task = _task(card, inputs)
    plain = card["network"]["model"]
    model = _build_ours(plain, task) if network is None else _build_own(plain, network, task)
    _check_layout(model.state_dict(), values)
    model.load_state_dict(values, assign=True)
    return InferenceModule(inputs, lay_out(model.eval().requires_grad_(False)), task).eval()


def layout(state: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in state.items()}


def _task(card: Mapping[str, Any], inputs: Inputs) -> Task:
    network = card["network"]
    classes = len(card["classes"])
    fitted = inputs.fitted
    shape = inputs.shape if fitted is None else fitted.shape
    vocabulary = network["vocabulary"] if fitted is None else fitted.recipe.vocabulary
    scale = tuple(network["centre"]), tuple(network["spread"])
    if {*map(len, scale)} not in ({0}, {classes}):
        raise ValueError(f"its centre and spread must be of {classes} targets")
    return Task(shape, classes, vocabulary, card["task"], *scale)


def _build_ours(plain: dict[str, Any], task: Task) -> SplitModel:
    """One of our networks, without memory for its weights, so that sizes can be compared with the stored ones first."""
    if plain["name"] == NETWORK:
        called = plain.get("called", "a network of your own")
        how = f"load it with hw.load_model(folder, network={called}), or export it as ONNX"
        raise ConfigError(f"it holds the weights of {called}, which is not one of Headwise's models: {how}.")
    if plain["name"] not in find_built_ins("model"):
        raise ValueError(f"it names the model {plain['name'][:60]!r}, which Headwise does not have")
    options = {k: v for k, v in plain.items() if k != "name"}
    with torch.device("meta"):
        model: SplitModel = build(registry.find("model", plain["name"]), options, "model").build(task).eval()
        _check_activations(model, task)
    return model


def _check_activations(model: SplitModel, task: Task) -> None:
    """Refuse a network whose layers could not even hold one sample."""
    sizes: list[int] = []
    hooks = [m.register_forward_hook(lambda m, x, y: sizes.append(y.numel())) for m in model.modules()]
    model(torch.zeros(1, *task.shape, dtype=torch.int64 if task.vocabulary else torch.float32))
    for hook in hooks:
        hook.remove()
    check_memory(8 * max(sizes), "its network")


def _build_own(plain: dict[str, Any], network: Any, task: Task) -> SplitModel:
    if isinstance(network, Model):
        return network.build(task)
    choice = Choice.parse(network, "model")
    if choice.name == NETWORK and plain.get("head"):
        choice = replace(choice, options={"head": plain["head"], **choice.options})
    return registry.make("model", choice).build(task)


def _check_layout(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    needed = layout(state)
    stored = layout(values)
    for name in dict.fromkeys([*needed, *stored]):
        if needed.get(name) != stored.get(name):
            given = stored.get(name, "missing")
            raise ValueError(f"its weight {name[:60]!r} is {given}, but in the network {needed.get(name, 'missing')}")


GRAPHS = 32
"""translated graphs that are kept"""


class OnnxGraph(NamedTuple):
    """A graph in ONNX, and the values that it was made with."""

    graph: Any
    values: dict[str, Tensor]
    kept: frozenset[str]
    """names of the values that the graph holds unchanged; the translation has computed with the others"""


_graphs: dict[str, OnnxGraph] = {}
"""by the text of the exported program: translating takes half a second, and clients' models have the same graph"""


def trace_program(module: InferenceModule, example: NDArray[Any]) -> ExportedProgram:
    """The program of a model, for any number of samples; raises a sentence for networks that torch can't trace."""
    x = torch.from_numpy(np.concatenate([example[:1]] * 2))  # torch would take a batch of one for the only size
    try:
        with _hide_warnings(), torch.no_grad():
            return export(module.eval(), (x,), dynamic_shapes={INPUT: {0: Dim("n", min=1)}})
    except Exception as error:  # torch has no class for what it can't trace
        reason = shorten(error)
        raise RunError(f"torch can't export this network ({type(error).__name__}: {reason}).") from error


def onnx_metadata(card: Mapping[str, Any]) -> dict[str, str]:
    """What users of the program alone need to know: the names of classes and of the columns of `x`."""
    preprocessing = card["inputs"]["preprocessing"] or {}
    columns = [column["name"] for column in preprocessing.get("columns", [])]
    names = {"classes": list(card["classes"]), "columns": columns}
    return {"task": card["task"], **{name: to_json(values) for name, values in names.items()}}


def to_onnx(program: ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """As an ONNX program with the input `x`, the outputs `scores` and `probabilities`, and this metadata."""
    check_format("onnx")
    import onnx.numpy_helper  # pyright: ignore[reportMissingImports]

    values = {**program.state_dict, **program.constants}
    key = str(program.graph) + str({k: (t.dtype, t.shape) for k, t in values.items()})
    known = _graphs.get(key)
    if known is None or not _fits(known, values):
        graph = _translate(program)
        own = {k: t.detach().clone() for k, t in values.items()}
        known = OnnxGraph(graph, own, frozenset(t.name for t in graph.graph.initializer if _holds(t, own)))
        if len(_graphs) >= GRAPHS:
            _graphs.clear()
        _graphs[key] = known
    for tensor in known.graph.graph.initializer:
        if tensor.name in known.kept:
            array = values[tensor.name].detach().contiguous().numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    del known.graph.metadata_props[:]
    for name, text in metadata.items():
        known.graph.metadata_props.add(key=name, value=text)
    return known.graph.SerializeToString(deterministic=True)


def _fits(known: OnnxGraph, values: dict[str, Tensor]) -> bool:
    return all(name in known.kept or torch.equal(t, values[name]) for name, t in known.values.items())


def _holds(tensor: Any, values: dict[str, Tensor]) -> bool:
    """Whether an initializer is the value of this name; one that was merged with others may keep its name."""
    import onnx.numpy_helper  # pyright: ignore[reportMissingImports]

    return tensor.name in values and np.array_equal(onnx.numpy_helper.to_array(tensor), values[tensor.name].numpy())


def _translate(program: ExportedProgram) -> Any:
    try:
        with _hide_warnings():
            translated = torch.onnx.export(
                program, (), dynamo=True, verbose=False, external_data=False, optimize=False,
                input_names=[INPUT], output_names=[*OUTPUTS],
            )  # fmt: skip
    except Exception as error:  # onnxscript has no class for what it can't translate
        reason = shorten(error)
        raise RunError(f"torch can't write this network as ONNX ({type(error).__name__}: {reason}).") from error
    assert translated is not None
    graph = translated.model_proto
    inner = graph.graph
    for part in (graph, inner, *inner.node, *inner.initializer, *inner.value_info, *inner.input, *inner.output):
        part.ClearField("doc_string")  # these name our source files and lines
        part.ClearField("metadata_props")
    return graph


@contextmanager
def _hide_warnings() -> Iterator[None]:
    """Hide torch's warnings about its own deprecated parts and about torchvision."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(before)
