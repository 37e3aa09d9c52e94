"""`fit`: from Python objects to a run, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.own.objects import COPY_GB, store
from ..engine.events import Observer
from ..errors import ConfigError, nearest
from ..runs.query import Run
from ..settings.choices import Choice
from ..settings.experiment import Experiment, experiment_from, put
from ..settings.fields import field_types
from .inputs import new_inputs
from .launch import free_folder, run, set_aside

SHORT = {
    "lr": "train.lr",
    "epochs": "train.epochs",
    "batch": "train.batch",
    "ratio": "sampling.ratio",
    "workers": "engine.workers",
    "device": "engine.device",
    "optimizer": "train.optimizer",
    "metric": "evaluate.metric",
    "patience": "stop.patience",
    "class_weight": "train.class_weights",
}
"""settings with short names: as on the command line, or as scikit-learn and torch call them"""
DATA = ("classes", "names", "separator", "missing", "features", "preprocess", "split")
"""settings of the data, named as in a data.toml"""


def fit(
    clients: Any,
    *,
    method: Any = "fedavg",
    model: Any = None,
    rounds: int = 50,
    task: str | None = None,
    client: str = "",
    target: str | Sequence[str] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    copy_gb: float = COPY_GB,
    observers: Iterable[Observer] = (),
    **settings: Any,
) -> Run:
    """Train on data that are already in memory, and return the run.

    `clients` maps names to ``(x, y)``, ``(train, test)`` or ``(train, val, test)`` of arrays, tensors, DataFrames or
    torch Datasets; or it is one DataFrame or Hugging Face Dataset, of which `client` and `target` name columns; or a
    partitioner of flwr-datasets; or the path of a data.toml. `model` is a name, an `nn.Module`, a class or function
    that returns one, ``"package.module:factory"`` or ``"file.py:factory"``. `settings` are those of an `Experiment`
    (``train={"lr": 0.1}`` or simply ``lr=0.1``) and of a data.toml (``split``, ``preprocess``, ``classes``, ...).

    `overwrite` replaces the run in `out`, once the new one has started; a folder that is not a run is never replaced.
    Beyond `copy_gb` gigabytes, arrays are not copied into the run's folder: they must lie in files (np.memmap), which
    are referenced with their hashes.

    >>> run = fit({"va": (x, y), "rome": (x2, y2)}, method="fedah", rounds=20)  # doctest: +SKIP
    """
    described, values = _sort_settings(settings)
    values |= {"method": method, "rounds": rounds} | ({} if model is None else {"model": model})
    name = Choice.parse(method, "method").name.partition("@")[0]
    folder = Path(out) if out else free_folder(f"{Path(name).stem}-own-s{values.get('seed', 0)}")
    experiment_from({**values, "data": "digits"})  # a wrong setting is refused before any data is read
    described |= {"task": task} if task else {}
    with set_aside(folder, overwrite), new_inputs(folder) as home:
        toml = store(clients, home, client=client, target=target, copy_gb=copy_gb, **described)
        return run(experiment_from({**values, "data": str(toml)}), folder, observers=observers)


def experiment_on(clients: Any, home: Path, settings: Mapping[str, Any]) -> Experiment:
    """An experiment on data in memory, which is stored below `home`; `settings` are those of `fit`."""
    about = {name: settings[name] for name in ("client", "target", "task", "copy_gb") if name in settings}
    described, values = _sort_settings({k: v for k, v in settings.items() if k not in about})
    experiment_from({**values, "data": "digits"})
    return experiment_from({**values, "data": str(store(clients, home, **about, **described))})


def _sort_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the data, and those of the experiment."""
    described: dict[str, Any] = {}
    values: dict[str, Any] = {}
    own = [k for k in field_types(Experiment) if k not in ("data", "partition", "clients")]
    for name, value in sorted(settings.items(), key=lambda item: item[0] in SHORT):  # or a table would replace them
        if name in SHORT:
            put(values, SHORT[name], value)
        elif name in DATA and not (name == "split" and isinstance(value, str)):
            described[name] = value
        elif name in own:
            values[name] = {**values.get(name, {}), **value} if isinstance(value, Mapping) else value
        else:
            known = [*own, *SHORT, *DATA, "client", "target", "task", "out"]
            raise ConfigError(f"{name} is not a setting: {nearest(name, known)}")
    return described, values
