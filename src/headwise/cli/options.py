"""Flags that several commands share, and the experiment that they describe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..disk import paths
from ..settings.experiment import Experiment, experiment_from, override, put, read_toml
from ..settings.fields import literal

if TYPE_CHECKING:
    from ..engine.events import Observer


class PathType(click.ParamType):
    """A path that passes one of the checks in `headwise.disk.paths`."""

    name = "path"

    def __init__(self, check: Callable[[str | Path, str], Path]) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return self.check(value, "a path" if param is None else param.opts[-1])


INPUT_FILE = PathType(paths.input_file)
INPUT_FOLDER = PathType(paths.input_folder)
OUTPUT_FILE = PathType(paths.output_file)
OUTPUT_FOLDER = PathType(paths.output_folder)
OUTPUT_PATH = PathType(paths.output_path)
EXISTING_OR_NEW_FILE = PathType(paths.existing_or_new_file)


FLAGS = {
    "method": ("method", "method, with options: fedrep:head_epochs=5, or your own file.py"),
    "data": ("data", "data set, or the path of your own data.toml"),
    "model": ("model", "network, or several separated by commas for clients with different ones"),
    "partition": ("partition", "which client gets which samples: dirichlet:0.1, exdir:2:0.5, pathological:2, natural"),
    "split": ("split", "train/test, train:validation:test or official"),
    "clients": ("clients", "number of clients"),
    "ratio": ("sampling.ratio", "share of the clients that train in each round; 0.1..1 draws a new one each time"),
    "rounds": ("rounds", "rounds of training"),
    "batch": ("train.batch", "samples per step"),
    "epochs": ("train.epochs", "passes over a client's data per round"),
    "lr": ("train.lr", "learning rate"),
    "seed": ("seed", "seeds everything random except the partition"),
    "faults": ("faults.inject", "faults to inject, as shares of a round's clients: drop=0.3,nan=0.05; or fedah"),
    "workers": ("engine.workers", "processes that train clients in parallel: auto, a number, or threads:2"),
    "engine": ("engine.kind", "local, flower-sim for Flower's simulation engine, or another package's executor"),
    "device": ("engine.device", "cpu, cuda, cuda:1 or mps"),
}
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""adds options to a command"""
PORT = click.IntRange(1, 65535)
json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else on stdout")
HOME = click.argument("folder", type=INPUT_FOLDER)
"""of a server or a site"""
insecure_option = click.option(
    "--insecure-loopback", "insecure", is_flag=True, help="no TLS and no keys; this machine only"
)
health_option = click.option(
    "--health", type=PORT, help="port for /healthz and Prometheus's /metrics, on loopback; default: none"
)
quiet_option = click.option("--quiet", is_flag=True, help="show no progress")
data_option = click.option("--data-dir", type=INPUT_FOLDER, help="folder of public data sets  [HEADWISE_DATA]")
moved_option = click.option("--data-dir", type=INPUT_FOLDER, help="folder of public data sets, if it moved")


def set_option(example: str) -> Decorator:
    return click.option(
        "--set", "changes", multiple=True, metavar="KEY=VALUE", help=f"any setting, for example {example}"
    )


def track_option(*, hidden: bool = False) -> Decorator:
    words = "also log to tensorboard, mlflow or wandb; repeatable"
    return click.option("--track", "tracked", multiple=True, metavar="NAME", help=words, hidden=hidden)


def flags(*names: str, hidden: Collection[str] = ()) -> Decorator:
    """Adds these flags from `FLAGS`."""
    helps = {name: f"{words}  [setting: {setting}]" for name, (setting, words) in FLAGS.items()}
    return _combine(*(click.option(f"--{name}", help=helps[name], hidden=name in hidden) for name in names))


def _combine(*options: Decorator) -> Decorator:
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def experiment_options(out: str = "it must be new", *, refused: Collection[str] = ()) -> Decorator:
    """Adds all flags that describe an experiment; help does not list those that the command refuses."""
    return _combine(
        flags(*FLAGS, hidden=refused),
        set_option("train.momentum=0.5"),
        click.option("--out", type=OUTPUT_FOLDER, help=f"folder for the results; {out}"),
        data_option,
        track_option(hidden="track" in refused),
        json_option,
        quiet_option,
    )


@dataclass(frozen=True)
class ExperimentOptions:
    """The values that a user gave for `experiment_options`."""

    flags: Mapping[str, str | None]
    """those of `FLAGS`, by name"""
    changes: tuple[str, ...]
    out: Path | None
    data_dir: Path | None
    tracked: tuple[str, ...]
    as_json: bool
    quiet: bool

    def experiment(self, config: Path | None) -> Experiment:
        return experiment_of(config, self.changes, self.flags)

    def watch(self, title: str) -> AbstractContextManager[list[Observer]]:
        """Show the progress of the run with this title, unless it must be quiet."""
        from .display import show_progress

        return show_progress(title, quiet=self.quiet)


def read_options(options: Mapping[str, Any]) -> ExperimentOptions:
    """From the arguments of a command with `experiment_options`."""
    flags = {name: options[name] for name in FLAGS}
    return ExperimentOptions(flags, **{name: value for name, value in options.items() if name not in FLAGS})


def experiment_of(config: Path | None, changes: tuple[str, ...], flags: Mapping[str, str | None]) -> Experiment:
    """From a TOML file, then flags, then --set: later ones win."""
    return experiment_from(values_from(config, changes, flags))


def values_from(
    config: Path | None, changes: tuple[str, ...], flags: Mapping[str, str | None], base: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """The same as plain values, on top of `base`."""
    values = {**base, **(read_toml(config) if config else {})}
    for name, text in flags.items():
        if text is None:
            continue
        if name == "ratio" and ".." in text:
            low, _, text = text.partition("..")
            put(values, "sampling.ratio_low", literal(low))
        if name == "model":
            values["model"] = text.split(",") if "," in text else text
        elif name in ("method", "data", "partition", "split"):
            values[name] = text
        else:
            put(values, FLAGS[name][0], literal(text))
    return override(values, changes)
