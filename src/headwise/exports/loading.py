"""Exported folders back as models, without anything that trains: onnxruntime or torch runs their program."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import Description
from ..errors import ConfigError, RunError
from ..settings.fields import build
from .archives import check_archive, check_onnx
from .card import CARD, PROGRAMS, WEIGHTS, program_of, read_card, read_file
from .inputs import Inputs, inputs_from
from .model import Said, TrainedModel, in_parts

Answer = Callable[[NDArray[Any]], Said]


def load(folder: str | Path) -> TrainedModel:
    """The model in a folder that `headwise export` wrote; whoever wrote it, no code of theirs runs."""
    folder = Path(folder)
    card = read_card(folder)
    name = program_of(folder, card)
    data = read_file(folder, card, name)
    read_file(folder, card, WEIGHTS)
    try:
        inputs = inputs_from(card["inputs"])
        if card["reading"]:
            build(Description, {**card["reading"], "path": ""})
    except (ValueError, ConfigError) as error:
        raise RunError(f"{folder / CARD} is damaged: {str(error).rstrip('.')}.") from error
    answer = runner(folder / name, data)
    _try(folder / name, answer, inputs, len(card["classes"]))
    return TrainedModel(card, inputs, partial(in_parts, answer=answer))


def runner(path: Path, data: bytes) -> Answer:
    """What runs the program in these bytes; `path` says by its name what they are."""
    return (_onnx if path.name == PROGRAMS["onnx"] else _torch)(path, data)


def _onnx(path: Path, data: bytes) -> Answer:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"{path} is ONNX, which needs onnxruntime: pip install 'headwise[export]'.") from None
    try:
        check_onnx(data)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong is raised as well
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base
        raise _unusable(path, error) from error

    def answer(x: NDArray[Any]) -> Said:
        found: list[Any] = list(session.run(["scores", "probabilities"], {"x": x}))
        return Said(*found)

    return answer


def _torch(path: Path, data: bytes) -> Answer:
    import torch

    try:
        check_archive(data)
        with warnings.catch_warnings(action="ignore"):  # torch's own deprecations
            module = torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # torch raises whatever it stumbles over
        raise _unusable(path, error) from error

    @torch.no_grad()
    def answer(x: NDArray[Any]) -> Said:
        return Said(*(t.numpy() for t in module(torch.from_numpy(x))))

    return answer


def _try(path: Path, answer: Answer, inputs: Inputs, classes: int) -> None:
    """Whether it answers a sample as the card says: another model's program would, or would not, by chance."""
    try:
        said = answer(np.zeros((1, *inputs.shape), inputs.dtype))
        right = all(isinstance(a, np.ndarray) and a.shape[:2] == (1, classes) and a.dtype == np.float32 for a in said)
    except Exception as error:  # as above
        raise _unusable(path, error) from error
    if not right:
        raise RunError(f"{path} does not fit its card: it must give {classes} scores and probabilities.")


def _unusable(path: Path, error: Exception) -> RunError:
    said = " ".join(str(error).split())[:200].rstrip(".")
    return RunError(f"{path} can't be used as a model: {said or type(error).__name__}.")
