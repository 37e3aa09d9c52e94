"""What was passed as Python objects becomes files in the run's folder, so that workers and `resume` need no object."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import nn

from ..data.sources.own import Own
from ..disk.files import digest, failing_clearly, write_bytes
from ..disk.jsontext import to_json
from ..errors import ConfigError, RunError
from ..models.network import describe_network, title, weights
from ..runs.manifest import INPUTS
from ..runs.store import refuse_if_taken
from ..settings.choices import NETWORK, OWN, Choice, reference
from ..settings.experiment import Experiment
from . import registry


@contextmanager
def new_inputs(folder: Path) -> Iterator[Path]:
    """The place for a new run's inputs; whatever it holds goes if the run can't start."""
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


def stored(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with what it needs from elsewhere in files below `home`."""
    return with_listed_files(with_stored_trace(with_stored_models(experiment, home), home), home)


def with_listed_files(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with a list of its data's files below `home`: a resumed run can say which one changed."""
    path = (home / "files.json").absolute()
    if experiment.data.name != OWN or not experiment.data.options.get("path"):
        return experiment
    if not path.exists():
        source: Own = registry.make("data", experiment.data)
        _save(path, to_json(source.hashes()).encode())
    return dataclasses.replace(experiment, data=Choice(OWN, {**experiment.data.options, "files": str(path)}))


def with_stored_models(experiment: Experiment, home: Path) -> Experiment:
    """The experiment with its networks, where they were passed as objects, in files below `home`."""
    models = tuple(_stored(choice, home) for choice in experiment.model)
    server = experiment.server_model and _stored(experiment.server_model, home)
    return dataclasses.replace(experiment, model=models, server_model=server)


def _stored(choice: Choice, home: Path) -> Choice:
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
    return Choice(NETWORK, {"called": title(given), "session": True, **_file(weights(given), home)}, given=given)


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
        _save(path, data)
    return path


def _save(path: Path, data: bytes) -> None:
    with failing_clearly(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
