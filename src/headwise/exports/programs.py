"""A model as an ONNX program, which onnxruntime runs anywhere."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim, ExportedProgram, export

from ..errors import RunError
from .card import check_format
from .ready import Ready

INPUT, OUTPUTS = "x", ("scores", "probabilities")
MOST = 32
"""graphs that are remembered"""


class Translated(NamedTuple):
    """A graph in ONNX, the values that it was made with, and the names of those that it holds as they are."""

    graph: Any
    values: dict[str, Tensor]
    held: frozenset[str]


_translated: dict[str, Translated] = {}
"""by the text of the exported program: translating takes half a second, and clients' models have the same graph"""


def exported(ready: Ready, example: NDArray[Any]) -> ExportedProgram:
    """The program of a model, for any number of samples; raises a sentence for networks that torch can't trace."""
    x = torch.from_numpy(np.concatenate([example[:1]] * 2))  # a single sample would be taken for the only number
    try:
        with _quiet(), torch.no_grad():
            return export(ready.eval(), (x,), dynamic_shapes={INPUT: {0: Dim("n", min=1)}})
    except Exception as error:  # torch has no class for what it can't trace
        said = " ".join(str(error).split())[:200]
        raise RunError(f"torch can't export this network ({type(error).__name__}: {said}).") from error


def onnx_program(program: ExportedProgram) -> bytes:
    """For onnxruntime: input `x`, outputs `scores` and `probabilities`."""
    check_format("onnx")
    import onnx.numpy_helper  # pyright: ignore[reportMissingImports]

    values = {**program.state_dict, **program.constants}
    key = str(program.graph) + str({k: (t.dtype, t.shape) for k, t in values.items()})
    known = _translated.get(key)
    if known is None or not _fits(known, values):
        graph, own = _translate(program), {k: t.detach().clone() for k, t in values.items()}
        known = Translated(graph, own, frozenset(t.name for t in graph.graph.initializer if _holds(t, own)))
        if len(_translated) >= MOST:
            _translated.clear()
        _translated[key] = known
    for tensor in known.graph.graph.initializer:
        if tensor.name in known.held:
            array = values[tensor.name].detach().contiguous().numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return known.graph.SerializeToString(deterministic=True)


def _fits(known: Translated, values: dict[str, Tensor]) -> bool:
    """Whether only values differ that the graph holds as they are: it has computed with the others."""
    return all(name in known.held or torch.equal(t, values[name]) for name, t in known.values.items())


def _holds(tensor: Any, values: dict[str, Tensor]) -> bool:
    """Whether an initializer is the value of this name; one that was merged with others may keep its name."""
    import onnx.numpy_helper  # pyright: ignore[reportMissingImports]

    return tensor.name in values and np.array_equal(onnx.numpy_helper.to_array(tensor), values[tensor.name].numpy())


def _translate(program: ExportedProgram) -> Any:
    try:
        with _quiet():
            made = torch.onnx.export(
                program, (), dynamo=True, verbose=False, external_data=False, optimize=False,
                input_names=[INPUT], output_names=[*OUTPUTS],
            )  # fmt: skip
    except Exception as error:  # onnxscript has no class for what it can't translate
        said = " ".join(str(error).split())[:200]
        raise RunError(f"torch can't write this network as ONNX ({type(error).__name__}: {said}).") from error
    assert made is not None
    graph = made.model_proto
    inner = graph.graph
    for part in (graph, inner, *inner.node, *inner.initializer, *inner.value_info, *inner.input, *inner.output):
        part.ClearField("doc_string")  # where our files are, and their lines, is nobody's business
        part.ClearField("metadata_props")
    return graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns of its own deprecated parts, and of torchvision that is not installed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(before)
