"""A run's inputs that are not settings: files of its folder, and objects that only a Python session has.

Python objects become files, so that workers and `resume` don't need the objects. For networks and functions defined in
a notebook or script, the folder has only the names: the session that passed them remembers them, and another one must
pass them again.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..data.sources.own import Own
from ..disk.files import digest, write_bytes
from ..disk.jsontext import to_json
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..models.network import describe_network, pack_weights, title
from ..runs.manifest import INPUTS
from ..runs.store import refuse_if_taken
from ..settings.choices import NETWORK, OWN, Choice, reference
from ..settings.experiment import Experiment
from . import registry
from .code import collect_code, list_changed_files

_OBJECTS: dict[tuple[Path, str], list[Any]] = {}
"""by the folder of the run that they were passed to, and the argument of `resume` that takes them again"""


@contextmanager
def new_inputs(folder: Path) -> Iterator[Path]:
    """The folder for a new run's inputs; it is removed if the run can't start."""
    refuse_if_taken(folder)
    home = folder / INPUTS
    missing = [p for p in (home, folder, *folder.parents) if not p.exists()]
    try:
        yield home
    finally:
        if not (folder / "manifest.json").exists():
            shutil.rmtree(home, ignore_errors=True)
            for path in missing:
                with suppress(OSError):
                    path.rmdir()


def store_inputs(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with its inputs stored as files below `home`."""
    return with_listed_files(with_stored_trace(with_stored_models(experiment, home), home), home)


def with_listed_files(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with a list of its data's files below `home`, so that a resumed run can name one that changed."""
    path = (home / "files.json").absolute()
    if experiment.data.name != OWN or not experiment.data.options.get("path"):
        return experiment
    if not path.exists():
        source: Own = registry.make("data", experiment.data)
        write_bytes(path, to_json(source.hashes()).encode(), parents=True)
    return dataclasses.replace(experiment, data=Choice(OWN, {**experiment.data.options, "files": str(path)}))


def with_stored_models(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with its networks, where they were passed as objects, in files below `home`."""
    models = tuple(_store(choice, home) for choice in experiment.model)
    server = experiment.server_model and _store(experiment.server_model, home)
    return dataclasses.replace(experiment, model=models, server_model=server)


def _store(choice: Choice, home: Path) -> Choice:
    """As a factory that can be imported, as a file, or, if neither is possible, as an object with a name."""
    given = choice.given
    if given is None or choice.options.get("session"):
        return choice
    if factory := "" if isinstance(given, nn.Module) else reference(given):
        return Choice(NETWORK, {"factory": factory})
    if not isinstance(given, nn.Module):
        return Choice(NETWORK, {"called": title(given), "session": True}, given=given)
    data = describe_network(given)
    if data is not None:
        return Choice(NETWORK, {"called": title(given), **_file(data, home)})
    return Choice(NETWORK, {"called": title(given), "session": True, **_file(pack_weights(given), home)}, given=given)


def with_stored_trace(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with a copy of its trace below `home`: a resumed run must see the same clients."""
    trace = Path(experiment.sampling.trace)
    if not experiment.sampling.trace or trace.parent == home.absolute():
        return experiment
    copy = _write(_content(trace), home, "trace", ".json" if trace.suffix == ".json" else ".txt")
    return dataclasses.replace(experiment, sampling=dataclasses.replace(experiment.sampling, trace=str(copy)))


def check_trace(experiment: Experiment) -> None:
    """Raise if the stored trace has changed since the run began: its name contains its hash."""
    trace = Path(experiment.sampling.trace)
    if experiment.sampling.trace and digest(_content(trace))[:16] != trace.stem[-16:]:
        raise RunError(f"{trace} is damaged: it has changed since the run began.")


def _content(trace: Path) -> bytes:
    try:
        return trace.read_bytes()
    except OSError as error:
        raise ConfigError(f"sampling.trace is {str(trace)!r}, which can't be read: {error.strerror}.") from error


def _file(data: bytes, home: Path) -> dict[str, str]:
    return {"path": str(_write(data, home, "model", ".safetensors")), "sha256": digest(data)}


def _write(data: bytes, home: Path, kind: str, suffix: str) -> Path:
    """Write a file that is named after its content."""
    path = (home / f"{kind}-{digest(data)[:16]}{suffix}").absolute()
    if not path.exists():
        write_bytes(path, data, parents=True)
    return path


def own_objects(experiment: Experiment) -> dict[str, Any]:
    """The objects, by the argument of `resume` that takes them again."""
    return {
        "model": [c.given for c in experiment.networks if c.given is not None],
        "augment": [a.given for a in experiment.train.augment if a.is_of_session and a.given is not None],
    }


def remember(experiment: Experiment, folder: Path) -> None:
    """Keep a run's objects for the rest of this session, which may resume the run or ask for its models."""
    _OBJECTS.update({(folder.resolve(), what): objects for what, objects in own_objects(experiment).items() if objects})


def with_remembered(experiment: Experiment, folder: Path) -> Experiment:
    """A run's own experiment, to make models; only methods that train to do so need its functions."""
    changed = list_changed_files(folder, collect_code(experiment))
    if changed:
        logging.getLogger("headwise").warning(
            "%s was run with other code: %s has changed since, and its models are made with the files as they are now.",
            folder,
            ", ".join(changed),
        )
    return with_functions(with_networks(experiment, folder), folder, needed=False)


def with_networks(experiment: Experiment, folder: Path, model: Any = None) -> Experiment:
    """A run's own experiment with its networks, as passed again or remembered."""
    names = [c.options["called"] for c in experiment.networks if c.options.get("session")]
    if not names:
        return experiment
    left = _match(folder, "model", names, model)

    def fill(choice: Choice) -> Choice:
        return replace(choice, given=next(left)) if choice.options.get("session") else choice

    models = tuple(fill(c) for c in experiment.model)
    return replace(experiment, model=models, server_model=experiment.server_model and fill(experiment.server_model))


def with_functions(experiment: Experiment, folder: Path, augment: Any = None, *, needed: bool = True) -> Experiment:
    """A run's own experiment with its functions, as passed again or remembered; without them if not `needed`."""
    names = [a.title for a in experiment.train.augment if a.is_of_session]
    known = needed or (folder.resolve(), "augment") in _OBJECTS
    if augment is None and not (names and known):
        return experiment
    left = _match(folder, "augment", names, augment)
    changes = [replace(a, given=next(left)) if a.is_of_session else a for a in experiment.train.augment]
    return replace(experiment, train=replace(experiment.train, augment=tuple(changes)))


def _match(folder: Path, what: str, names: Sequence[str], given: Any) -> Iterator[Any]:
    """The objects that were given, or are remembered, for these names."""
    given = _OBJECTS.get((folder.resolve(), what), []) if given is None else given
    objects = given if isinstance(given, (list, tuple)) else [given]
    if len(objects) != len(names):
        listed = ", ".join(names)
        how = f"headwise.resume({str(folder)!r}, {what}={listed if len(names) == 1 else f'[{listed}]'})"
        if not names:
            raise RunError(f"{folder} uses nothing that only a notebook or script has: leave {what} out.")
        raise RunError(f"{folder} uses {listed}, defined in a notebook or script: pass it again, as in {how}.")
    return iter(objects)


def check_processes(plan: Plan, local: str, workers: str) -> str:
    """The executor to use: threads instead of processes for objects that other processes can't have."""
    only_here = [("model", c.options["called"]) for c in plan.experiment.networks if c.given is not None]
    only_here += [("train.augment", a.title) for a in plan.experiment.train.augment if a.is_of_session]
    if not only_here or local in ("serial", "threads"):
        return local
    if local == "pool" and workers == "auto":
        return "threads"
    what, name = only_here[0]
    raise ConfigError(
        f"{what} is {name}, defined in a notebook or script, where other processes can't import it: set "
        f"engine.workers to 1 or threads:2, or move it to a file and pass {what}='file.py:{name}'."
    )
