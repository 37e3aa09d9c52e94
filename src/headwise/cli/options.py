"""The flags that `run` and `compare` share, and the experiment they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..settings.experiment import Experiment, experiment_from, literal, override, put, read_toml
from .paths import INPUT_FOLDER, OUTPUT_FOLDER

FLAGS = {
    "method": ("method", "method, with options: fedrep:head_epochs=5, or your own file.py"),
    "data": ("data", "data set"),
    "model": ("model", "network, or several with commas for clients with different ones"),
    "partition": ("partition", "who gets which samples: dirichlet:0.1, exdir:2:0.5, pathological:2, natural"),
    "split": ("split", "train/test, train:validation:test or official"),
    "clients": ("clients", "number of clients"),
    "ratio": ("sampling.ratio", "share of the clients in each round; 0.1..1 draws it anew each round"),
    "rounds": ("rounds", "rounds of training"),
    "batch": ("train.batch", "samples per step"),
    "epochs": ("train.epochs", "passes over a client's data per round"),
    "lr": ("train.lr", "learning rate"),
    "seed": ("seed", "of everything random but the partition"),
    "faults": ("faults.inject", "failures made on purpose, by share of a round's clients: drop=0.3,nan=0.05; or fedah"),
    "workers": ("engine.workers", "processes that train clients side by side: auto, a number, or threads:2"),
    "engine": ("engine.kind", "local, flower-sim for Flower's simulation engine, or another package's executor"),
    "device": ("engine.device", "cpu, cuda, cuda:1 or mps"),
}


PORT = click.IntRange(1, 65535)
track_option = click.option(
    "--track", "tracked", multiple=True, metavar="NAME", help="also tell tensorboard, mlflow or wandb; repeatable"
)


def experiment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All flags that describe an experiment."""
    options = [
        *(click.option(f"--{name}", help=f"{text}  [{path}]") for name, (path, text) in FLAGS.items()),
        click.option(
            "--set", "changes", multiple=True, metavar="KEY=VALUE", help="any setting, for instance train.momentum=0.5"
        ),
        click.option("--out", type=OUTPUT_FOLDER, help="folder for the results; it must be new"),
        click.option("--data-dir", type=INPUT_FOLDER, help="where public data sets are  [HEADWISE_DATA]"),
        track_option,
        click.option("--json", "as_json", is_flag=True, help="print one JSON object on stdout and nothing else there"),
        click.option("--quiet", is_flag=True, help="show no progress"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def experiment_of(config: Path | None, changes: tuple[str, ...], flags: Mapping[str, str | None]) -> Experiment:
    """The experiment that a TOML file, then flags, then --set describe."""
    values = read_toml(config) if config else {}
    for name, text in flags.items():
        if text is not None:
            _apply(values, name, text)
    return experiment_from(override(values, changes))


def _apply(values: dict[str, Any], name: str, text: str) -> None:
    path = FLAGS[name][0]
    if name == "ratio" and ".." in text:
        low, _, high = text.partition("..")
        put(values, "sampling.ratio_low", literal(low))
        text = high
    if name == "model":
        values["model"] = text.split(",") if "," in text else text
    elif name in ("method", "data", "partition", "split"):
        values[name] = text
    else:
        put(values, path, literal(text))
