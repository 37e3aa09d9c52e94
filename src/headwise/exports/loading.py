"""Exported folders back as models: onnxruntime runs a program, or torch a network of ours or of the caller."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import Description
from ..errors import ConfigError, HeadwiseError, RunError
from ..settings.fields import build
from .card import CARD, FILES, format_of, read_card, read_file
from .inputs import Inputs, inputs_from
from .model import Said, TrainedModel, in_parts
from .operators import checked_program

if TYPE_CHECKING:
    from .ready import Ready

Answer = Callable[[NDArray[Any]], Said]


def load_model(folder: str | Path, network: Any = None) -> TrainedModel:
    """The model in a folder that `headwise export` wrote; whoever wrote it, no code of theirs runs.

    `network` is the network of your own whose weights the folder holds: a class, factory, name or object, as in `fit`.
    """
    folder = Path(folder)
    card = read_card(folder)
    format = format_of(folder, card)
    path = folder / FILES[format]
    data = read_file(folder, card, path.name)
    try:
        inputs = inputs_from(card["inputs"])
        if card["reading"]:
            build(Description, {**card["reading"], "path": ""})
    except (ValueError, ConfigError) as error:
        raise RunError(f"{folder / CARD} is damaged: {str(error).rstrip('.')}.") from error
    if format == "onnx":
        if network is not None:
            raise ConfigError(f"network is given, but {path} is a program, which needs none: leave it out.")
        answer, module = program_answer(path, data), None
    else:
        ready = rebuilt_network(path, card, inputs, data, network)
        answer, module = network_answer(ready), ready.network
    _try(path, answer, inputs, len(card["classes"]))
    return TrainedModel(card, inputs, partial(in_parts, answer=answer), module)


def program_answer(path: Path, data: bytes) -> Answer:
    """What onnxruntime answers by the program in these bytes."""
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"{path} is ONNX, which needs pip install 'headwise[export]'.") from None
    try:
        program = checked_program(data)
        _bound_memory()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong is raised as well
        options.add_session_config_entry("session.use_env_allocators", "1")
        session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    except ConfigError:
        raise
    except Exception as error:  # its classes have no common base
        raise _unusable(path, error) from error

    def answer(x: NDArray[Any]) -> Said:
        try:
            found: list[Any] = list(session.run(["scores", "probabilities"], {"x": x}))
        except Exception as error:  # as above
            raise _unusable(path, error) from error
        return _checked(path, Said(*found), len(x))

    return answer


@cache
def _bound_memory() -> None:
    """Let programs use at most half of the machine's memory: a small one may ask for a huge tensor."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    limits = onnxruntime.OrtArenaCfg({"max_mem": half, "arena_extend_strategy": 1})  # 1: no more than needed
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), limits)


def rebuilt_network(path: Path, card: dict[str, Any], inputs: Inputs, data: bytes, network: Any = None) -> Ready:
    """The network that the card names, or this one, with the weights in these bytes."""
    from .ready import rebuilt

    try:
        return rebuilt(card, inputs, data, network)
    except Exception as error:  # torch has no class for sizes that it can't have
        raise _unusable(path, error) from error


def network_answer(ready: Ready) -> Answer:
    import torch

    @torch.no_grad()
    def answer(x: NDArray[Any]) -> Said:
        return Said(*(t.numpy() for t in ready(torch.from_numpy(x))))

    return answer


def _checked(path: Path, said: Said, samples: int) -> Said:
    """A program could answer anything."""
    for each in said:
        if not isinstance(each, np.ndarray) or each.dtype != np.float32 or each.ndim < 2 or len(each) != samples:
            raise RunError(f"{path} can't be used as a model: it must answer {samples} samples with as many float32.")
    return said


def _try(path: Path, answer: Answer, inputs: Inputs, classes: int) -> None:
    """Whether it answers a sample as the card says: another model's program would, or would not, by chance."""
    try:
        said = answer(np.zeros((1, *inputs.shape), inputs.dtype))
    except HeadwiseError:
        raise
    except Exception as error:  # torch raises whatever it stumbles over
        raise _unusable(path, error) from error
    if not all(each.shape[:2] == (1, classes) for each in said):
        raise RunError(f"{path} does not fit its card: it must give {classes} scores and probabilities.")


def _unusable(path: Path, error: Exception) -> RunError:
    said = " ".join(str(error).split())[:200].rstrip(".")
    return RunError(f"{path} can't be used as a model: {said or type(error).__name__}.")
