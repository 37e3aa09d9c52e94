"""What only a Python session has of an experiment: networks and functions that were defined in a notebook or script.

A run's folder stores only their names. The session that passed them remembers them; another one must pass them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..settings.choices import Choice
from ..settings.experiment import Experiment

_PASSED: dict[tuple[Path, str], list[Any]] = {}
"""by the folder of the run that they were passed to, and the argument of `resume` that takes them again"""


def passed(experiment: Experiment) -> dict[str, Any]:
    """The objects, by the argument of `resume` that takes them again."""
    return {
        "model": [c.given for c in _networks(experiment) if c.given is not None],
        "augment": [a.given for a in experiment.train.augment if a.is_of_session and a.given is not None],
    }


def remember(experiment: Experiment, folder: Path) -> None:
    """Keep a run's objects for the rest of this session, which may resume the run or ask for its models."""
    _PASSED.update({(folder.resolve(), what): found for what, found in passed(experiment).items() if found})


def with_remembered(experiment: Experiment, folder: Path) -> Experiment:
    """A run's own experiment, to make models: functions are only needed by methods that train for that."""
    return with_functions(with_networks(experiment, folder), folder, needed=False)


def with_networks(experiment: Experiment, folder: Path, model: Any = None) -> Experiment:
    """A run's own experiment with its networks, as passed again or remembered."""
    wanted = [c.options["called"] for c in _networks(experiment) if c.options.get("session")]
    if not wanted:
        return experiment
    left = _again(folder, "model", wanted, model)

    def given(choice: Choice) -> Choice:
        return replace(choice, given=next(left)) if choice.options.get("session") else choice

    models = tuple(given(c) for c in experiment.model)
    return replace(experiment, model=models, server_model=experiment.server_model and given(experiment.server_model))


def with_functions(experiment: Experiment, folder: Path, augment: Any = None, *, needed: bool = True) -> Experiment:
    """A run's own experiment with its functions, as passed again or remembered; without, if they are not `needed`."""
    wanted = [a.title for a in experiment.train.augment if a.is_of_session]
    known = needed or (folder.resolve(), "augment") in _PASSED
    if augment is None and not (wanted and known):
        return experiment
    left = _again(folder, "augment", wanted, augment)
    changes = [replace(a, given=next(left)) if a.is_of_session else a for a in experiment.train.augment]
    return replace(experiment, train=replace(experiment.train, augment=tuple(changes)))


def _again(folder: Path, what: str, wanted: Sequence[str], given: Any) -> Iterator[Any]:
    given = _PASSED.get((folder.resolve(), what), []) if given is None else given
    found = given if isinstance(given, (list, tuple)) else [given]
    if len(found) != len(wanted):
        names = ", ".join(wanted)
        how = f"headwise.resume({str(folder)!r}, {what}={names if len(wanted) == 1 else f'[{names}]'})"
        if not wanted:
            raise RunError(f"{folder} uses nothing that only a notebook or script has: leave {what} out.")
        raise RunError(f"{folder} uses {names}, defined in a notebook or script: pass it again, as in {how}.")
    return iter(found)


def check_processes(plan: Plan, local: str, asked: str) -> str:
    """The executor to use: threads instead of processes for objects that other processes can't have."""
    only_here = [("model", c.options["called"]) for c in _networks(plan.experiment) if c.given is not None]
    only_here += [("train.augment", a.title) for a in plan.experiment.train.augment if a.is_of_session]
    if not only_here or local in ("serial", "threads"):
        return local
    if local == "pool" and asked == "auto":
        return "threads"
    what, name = only_here[0]
    raise ConfigError(
        f"{what} is {name}, defined in a notebook or script, where other processes can't import it: set "
        f"engine.workers to 1 or threads:2, or move it to a file and pass {what}='file.py:{name}'."
    )


def _networks(experiment: Experiment) -> tuple[Choice, ...]:
    return (*experiment.model, *([experiment.server_model] if experiment.server_model else []))
