"""Repeats a run as if some of its clients had never taken part, and compares the others before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..engine.events import Observer
from ..errors import ConfigError, RunError
from ..report.page import write_forgotten
from ..runs.query import Run
from ..settings.experiment import Experiment, experiment_from
from .code import check_unchanged, collect_code
from .launch import Backend, data_folder, free_folder, make_local_backend, run
from .prepare import Prepared

PAGE = "without.html"


def retrain(
    folder: str | Path,
    without: Sequence[str | int],
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
) -> Run:
    """The run again without these clients; the others keep their numbers, their samples and their random draws."""
    before = Run(Path(folder))
    experiment = _experiment_without(before, without)
    check_unchanged(before.path, before.manifest, collect_code(experiment), "restore it to repeat the run")
    backend = make_local_backend(data_folder(data_dir or before.manifest["data_dir"]))

    def make(experiment: Experiment) -> Prepared:
        prepared = backend.make(experiment)
        rows = zip(prepared.histograms["train"], before.partition["train"], strict=True)
        if any(now != then for now, then in rows if any(now)):
            raise RunError(f"{before.path} can't be repeated, the data changed: the remaining clients' samples differ.")
        return prepared

    place = Path(out) if out else free_folder(f"{before.path.name}-without-{'-'.join(map(str, without))}")
    after = run(experiment, place, data_dir=data_dir, observers=observers, backend=Backend(make, backend.executor))
    write_forgotten(before, after, after.path / PAGE)
    return after


def _experiment_without(before: Run, without: Sequence[str | int]) -> Experiment:
    before.check_complete()
    experiment = experiment_from(before.manifest["experiment"])
    if experiment.origin.run:
        raise RunError(
            f"{before.path} continues from {experiment.origin.run}, which trained on them: retrain that one first."
        )
    if experiment.engine.kind == "flower":
        raise RunError(f"{before.path} has its clients at sites: deploy again without theirs.")
    numbers = {before.number_of(who) for who in without}
    names = [before.names[c] if before.names else str(c) for c in sorted(numbers)]
    if again := [name for name in names if name in experiment.without]:
        raise ConfigError(f"without names {again[0]!r}, but {before.path} is already without it.")
    if not names:
        raise ConfigError("without is empty: name the clients to forget.")
    return replace(experiment, without=(*experiment.without, *names))
