"""Loads exported folders: onnxruntime runs a program, or torch runs one of our networks or the caller's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import Description
from ..errors import ConfigError, HeadwiseError, RunError
from ..settings.fields import build
from .card import CARD, FILES, format_of, output_shape, read_card, read_file
from .inputs import Inputs, read_inputs
from .model import Format, PackedModel, Prediction, TrainedModel, cast_classes, predict_in_parts
from .programs import Answer, describe_unusable, load_program

if TYPE_CHECKING:
    from .network import InferenceModule


def load_model(folder: str | Path, network: Any = None) -> TrainedModel:
    """Load a model from a folder that `TrainedModel.save` or ``headwise export`` wrote.

    Nothing in the folder is run as code, so it may come from anybody: a program is ONNX with a fixed list of operators,
    and weights are loaded into a network that is known here.

    Args:
        folder: The folder with card.json.
        network: Your own network, if the folder holds weights of one: a class, factory, name or object, as in `fit`.

    Returns:
        The model, which predicts from samples as they were before preprocessing.

    Raises:
        RunError: If the folder is incomplete, damaged, or not a model.
        ConfigError: If a package or the network is missing.

    >>> model = load_model("models/va")
    >>> model.predict(patients)
    array(['healthy', 'ill'], dtype='<U7')
    """
    folder = Path(folder)
    card = read_card(folder)
    format = format_of(folder, card)
    return restore_model(card, format, read_file(folder, card, FILES[format]), network, folder)


def restore_model(
    card: dict[str, Any], format: Format, data: bytes, network: Any = None, folder: Path = Path("model")
) -> TrainedModel:
    """The model of this card, from the content of its file; `folder` is for messages."""
    path = folder / FILES[format]
    try:
        inputs = read_inputs(card["inputs"])
        cast_classes(card["classes"], card["label_type"])
        if card["reading"]:
            build(Description, {**card["reading"], "path": ""})
    except (ValueError, ConfigError, RunError) as error:
        raise RunError(f"{folder / CARD} is damaged: {str(error).rstrip('.')}.") from error
    module = None
    if format == "torch":
        whole = load_weights(path, card, inputs, data, network)
        module = whole.network
        answer = make_answer(whole)
    elif network is None:
        answer = load_program(path, data, output_shape(card))
    else:
        raise ConfigError(f"network is given, but {path} is a program, which needs none: leave it out.")
    _check_answer(path, answer, inputs, output_shape(card))
    packed = PackedModel(card, format, data, network)
    return TrainedModel(card, inputs, partial(predict_in_parts, answer=answer), partial(_pack_again, packed), module)


def _pack_again(packed: PackedModel, format: Format) -> PackedModel:
    """The file that a model was loaded from; another format could not be checked, because there are no samples."""
    if format != packed.format:
        raise ConfigError(f"format is {format!r}, but this model was loaded from the format {packed.format}.")
    return packed


def load_weights(path: Path, card: dict[str, Any], inputs: Inputs, data: bytes, network: Any = None) -> InferenceModule:
    """The network that the card names, or `network`, with the weights in these bytes."""
    from .network import rebuild

    try:
        return rebuild(card, inputs, data, network)
    except Exception as error:  # torch has no class for sizes that it can't have
        raise describe_unusable(path, error) from error


def make_answer(module: InferenceModule) -> Answer:
    import torch

    @torch.no_grad()
    def answer(x: NDArray[Any]) -> Prediction:
        return Prediction(*(t.numpy() for t in module(torch.from_numpy(x))))

    return answer


def _check_answer(path: Path, answer: Answer, inputs: Inputs, shape: tuple[int, ...]) -> None:
    """Check that the model's output for one sample has the shape on its card."""
    try:
        prediction = answer(np.zeros((1, *inputs.shape), inputs.dtype))
    except HeadwiseError:
        raise
    except Exception as error:  # torch raises errors of many classes
        raise describe_unusable(path, error) from error
    if not all(each.shape == (1, *shape) for each in prediction):
        raise RunError(f"{path} does not fit its card: it must give scores and probabilities of shape {list(shape)}.")
