"""An exported folder: card.json describes the model, and lists the other files with their sizes and hashes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from .. import __version__
from ..data.dataset import Dataset
from ..data.own.description import read_description
from ..disk.files import (
    digest,
    explain_write_errors,
    new_folder,
    read_bytes,
    read_json,
    seal,
    write_bytes,
    write_json,
)
from ..errors import ConfigError, RunError
from ..runs.files import Judge, check, check_version, judge_of
from ..runs.query import Run
from ..settings.choices import OWN, Choice
from ..settings.experiment import Experiment, experiment_from
from ..settings.fields import dump
from ..tasks.registry import TASKS, kind_of

FORMAT = 1
"""of all files in an exported folder"""
CARD = "card.json"
FILES = {"onnx": "model.onnx", "torch": "weights.safetensors"}
"""by format: a program, or the weights of a network that the card names"""
DOWN = "download.safetensors"
WHOLE = "global.safetensors"
MOST = {CARD: 64 * 2**20, FILES["onnx"]: 2**28, FILES["torch"]: 2**34, DOWN: 2**34, WHOLE: 2**34}
"""bytes that a file may have; a program may take 80 times as many when it is parsed"""

_SHAPE = judge_of({
    "task": str,
    "network?": ({"model": {"name": str}, "vocabulary": int, "centre": [float], "spread": [float]}, None),
    "classes": [str],
    "label_type": str,
    "inputs": {
        "shape": [int], "dtype": str, "mean": [float], "std": [float], "missing": [str], "preprocessing": (dict, None)
    },
    "reading": dict,
    "of": dict,
    "metrics": (dict, None),
    "training": dict,
    "licence": str,
    "checksum": str,
    "files": {str: {"bytes": int, "sha256": str}},
})  # fmt: skip


def check_format(format: str) -> None:
    """Raise if no model can be written in this format here."""
    if format not in FILES:
        raise ConfigError(f"format is {format!r}, but must be one of {', '.join(FILES)}.")
    if format == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise ConfigError("format is 'onnx', which needs pip install 'headwise[export]'; or choose the format torch.")


def write_folder(folder: Path, card: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    with new_folder(folder) as draft:
        sizes = {name: {"bytes": len(d), "sha256": digest(d)} for name, d in files.items()}
        for name, data in files.items():
            write_bytes(draft / name, data)
        write_json(draft / CARD, seal({"format": FORMAT, "headwise": __version__, **card, "files": sizes}))


def read_card(folder: Path) -> dict[str, Any]:
    """What a model's folder holds."""
    card = read_any_card(folder, _SHAPE)
    if not card["classes"]:
        raise RunError(f"{folder / CARD} is damaged: it names no classes.")
    if card["task"] not in TASKS:
        raise RunError(f"{folder / CARD} is damaged: its task is {card['task'][:60]!r}.")
    return card


def read_any_card(folder: Path, shape: Judge) -> dict[str, Any]:
    """The card of a folder, in this shape; raises `RunError` if this Headwise can't read it."""
    try:
        is_folder = folder.is_dir()
    except OSError as error:  # such as a name that is too long
        raise RunError(f"{folder} can't be read: {error.strerror}.") from error
    if not is_folder:
        what = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}, but must be a folder that headwise export wrote.")
    if not (folder / CARD).exists():
        raise RunError(f"{folder} has no {CARD}: it is not a folder that headwise export wrote.")
    _check_size(folder / CARD)
    card = read_json(folder / CARD)
    check_version(card, FORMAT, folder / CARD)
    check(card, shape, folder / CARD)
    return card


def read_file(folder: Path, card: Mapping[str, Any], name: str) -> bytes:
    """One of its files, which must be what the card says."""
    path = folder / name
    entry = card["files"].get(name)
    if entry is None:
        raise RunError(f"{folder / CARD} names no {name}.")
    if not path.exists():
        raise RunError(f"{folder} is incomplete: it has no {name}.")
    _check_size(path)
    if (size := path.stat().st_size) != entry["bytes"]:
        raise RunError(f"{path} is damaged: it has {size:,} bytes, but its card says {entry['bytes']:,}.")
    data = read_bytes(path)
    if digest(data) != entry["sha256"]:
        raise RunError(f"{path} is damaged: its sha256 is not what its card says.")
    return data


def output_shape(card: Mapping[str, Any]) -> tuple[int, ...]:
    """Of the scores of one sample: a number for each class, label or quantity, and for each pixel of a mask."""
    pixels = card["inputs"]["shape"][1:] if kind_of(card["task"]).per_pixel else []
    return len(card["classes"]), *pixels


def format_of(folder: Path, card: Mapping[str, Any]) -> Literal["onnx", "torch"]:
    if FILES["onnx"] in card["files"]:
        return "onnx"
    if FILES["torch"] in card["files"] and card.get("network"):
        return "torch"
    raise RunError(f"{folder / CARD} names neither {FILES['onnx']} nor weights and a network: export it again.")


def _check_size(path: Path) -> None:
    """Before anything is read: a huge file must not fill the memory."""
    with explain_write_errors(path):
        size = path.stat().st_size
    if size > MOST[path.name]:
        raise RunError(f"{path} has {size:,} bytes, but no model has more than {MOST[path.name]:,}.")


def make_run_card(
    run: Run, dataset: Dataset, *, t: int, which: str, client: int | None = None, moment: str = "", licence: str = ""
) -> dict[str, Any]:
    """The card of a client's model, or of the global one, without its inputs and files."""
    manifest = run.manifest
    experiment = experiment_from(manifest["experiment"])
    who = {} if client is None else {"client": client, "name": run.names[client] if run.names else str(client)}
    of = {"kind": "global" if client is None else "personal", **who, "moment": moment, "round": t, "which": which}
    card = make_card(experiment, experiment.data, dataset, of, licence)
    card |= {"privacy": manifest.get("privacy"), "metric": run.metric.name}
    card["training"]["division"] = _division(experiment, manifest["experiment"]["clients"])
    card["training"] |= {
        "rounds": t, "clients": manifest["experiment"]["clients"], "created": manifest.get("created"),
        "headwise": manifest.get("headwise"), "partition": manifest["partition"]["hash"], "seed": experiment.seed,
    }  # fmt: skip
    if client is None:
        row = next((r for r in run.rounds if r["round"] == t), {})
        return {**card, "metrics": row.get("global"), "floor": run.floor}
    card["training"]["samples"] = sum(run.partition["train"][client])
    floor = run.floors[client] if run.floors else None
    return {**card, "metrics": _scores(run, client, t, moment), "floor": floor}


def _division(experiment: Experiment, clients: int) -> dict[str, Any]:
    """How the run's data was divided, without its location: whoever has the data can find the test samples again."""
    plain = experiment.to_plain()
    names = ("partition", "split", "fraction", "seed", "data_seed", "task", "target_range", "without")
    division = {name: plain[name] for name in names if plain.get(name) is not None}
    evaluate = {name: plain["evaluate"][name] for name in ("validation", "new_clients")}
    return {**division, "clients": clients, "evaluate": evaluate}


def make_card(
    experiment: Experiment, data: Choice, dataset: Dataset, of: dict[str, Any], licence: str
) -> dict[str, Any]:
    """The part of a card that every model has; `data` is where the samples come from."""
    path = data.options.get("path") if data.name == OWN else None  # none at the server of a federation
    description = read_description(Path(path)) if path else None
    return {
        "task": dataset.task,
        "classes": list(dataset.classes),
        "label_type": dataset.label_type,
        "of": of,
        "reading": {} if description is None else {**dump(description), "path": "", "sha256": ""},
        "metrics": None,
        "floor": None,
        "training": {
            "method": dump(experiment.method),
            "model": dump(experiment.model),
            "data": data.name,
            "train": dump(experiment.train),
        },
        "privacy": None,
        "licence": licence,
    }


def _scores(run: Run, client: int, t: int, moment: str) -> dict[str, Any] | None:
    """This model's scores in the run; empty if it was not measured."""
    rows = [row for row in run.clients if row["client"] == client and row["round"] <= t]
    if moment == "post":  # its last training may be some rounds ago
        t = max((row["round"] for row in rows if "samples" in row), default=t)
    parts = next((row[moment] for row in rows if row["round"] == t and moment in row), None)
    return parts and {part: scores for part, scores in dict(parts).items() if scores}
