"""Plays a league: runs the cells that are missing from its folder, reads the others, and writes its page."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..app.prepare import prepare
from ..app.registry import resolve
from ..disk.files import make_folder, write_bytes
from ..engine.executors.crew import Crew, WorkerLostError
from ..errors import ConfigError, DataError, HeadwiseError, RunError, pluralize
from ..report.page import fill_template, script_safe
from ..report.recommendation import LOCAL
from ..settings.names import list_names
from .cells import HOME, KINDS, Federation, Kind, LeagueCell, Result, hash_of, place_of, read_result, run_cell, to_csv
from .standings import STAR, Group, Standings, federation_table, standings_of

DRAWS = 5
Note = Callable[[str], None]
"""is called with a line about each cell that ended"""
RunOne = Callable[[int], tuple[int, Result]]
"""runs the cell with this number"""


@dataclass(frozen=True)
class League:
    """The results so far, and what is missing."""

    results: tuple[Result, ...]
    """those that were asked for, then all others in the folder that still hold"""
    missing: tuple[str, ...] = ()
    """the commands that run each"""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """federations that were not run, since their data are missing, and why"""
    older: tuple[str, ...] = ()
    """results in the folder that the tables leave out: their files have changed since, or are not here"""
    strangers: tuple[str, ...] = ()
    """federations in the folder that were not named, so that nobody knows whether their results still hold"""

    def words(self) -> list[str]:
        """What the results lack, in sentences."""
        sentences = [f"Not run: {name}. {reason}" for name, reason in self.left_out.items()]
        if self.missing:
            counted = pluralize(len(self.missing), "cell")
            sentences.append(f"{counted} not run yet; the first: {self.missing[0]}")
        if self.older:
            changed = "whose federation, method or data has changed since, or is not here"
            sentences.append(f"The tables leave out results {changed}: {', '.join(self.older)}.")
        if self.strangers:
            named = ", ".join(self.strangers)
            sentences.append(f"The tables leave out other federations in the folder: {named}; name their files.")
        alone = [f"{r.method} on {r.federation}" for r in self.results if r.kb_down == 0 and r.method != "standalone"]
        if alone:
            sentences.append(f"Clients received nothing, and trained alone: {', '.join(dict.fromkeys(alone))}.")
        failed = [r for r in self.results if r.error]
        for reason in dict.fromkeys(r.error for r in failed):
            which = [f"{r.method} on {r.federation}" for r in failed if r.error == reason]
            sentences.append(f"No score for {', '.join(dict.fromkeys(which))}: {reason}")
        return sentences


def play(
    federations: Sequence[Federation],
    folder: Path,
    data_dir: Path,
    *,
    methods: Sequence[str] = (),
    settings: Sequence[Kind] = ("default",),
    draws: Sequence[int] = range(DRAWS),
    run: bool = True,
    keep: bool = False,
    workers: int = 1,
    note: Note = lambda line: None,
    shown: Sequence[Federation] = (),
) -> League:
    """Run all cells of these federations, methods, settings and draws that are not in the folder yet.

    Draws come first, so that a league that is stopped early has all methods on the same draws. `workers` cells run at
    the same time, each in a process of its own. The league has all results in the folder that still hold, of these
    federations and of those in `shown`.
    """
    names = [*methods] or list_names("method")
    for name in names:
        resolve("method", name)  # refuses wrong names and options before the first run
    if wrong := [s for s in settings if s not in KINDS]:
        raise ConfigError(f"settings is {wrong[0]!r}, but must be default, tuned, or both with a comma.")
    left_out = {f.name: reason for f in federations if (reason := _explain_absence(f, data_dir))}
    able = [f for f in federations if f.name not in left_out]
    cells = [LeagueCell(f, name, draw, s) for draw in draws for s in settings for f in able for name in names]
    make_folder(folder)
    results = [_read_cell(cell, folder) for cell in cells]
    missing = [k for k, result in enumerate(results) if result is None]
    run_one = partial(_run_numbered, cells, folder, data_dir, keep)
    for done, (k, result) in enumerate(_run_all(missing if run else [], run_one, workers)):
        results[k] = result
        note(f"{done + 1} of {len(missing)}: {_describe(cells[k], result)}")
    left = tuple(cell.command(folder) for cell, result in zip(cells, results, strict=True) if result is None)
    known = {federation.name: federation for federation in (*shown, *federations)}
    others, older, strangers = _read_others(folder, known, {place_of(result) for result in results if result})
    everything = (*(result for result in results if result), *others)
    if left_out and not able and not everything:
        reasons = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in left_out.items())
        raise DataError(f"no federation can be run, since their data are missing: {reasons}.")
    return League(everything, left, left_out, older, strangers)


def _run_numbered(
    cells: Sequence[LeagueCell], folder: Path, data_dir: Path, keep: bool, number: int
) -> tuple[int, Result]:
    return number, run_cell(cells[number], folder, data_dir, keep=keep)


def _run_all(missing: Sequence[int], run_one: RunOne, workers: int) -> Iterator[tuple[int, Result]]:
    """The cells' results with their numbers, as they end."""
    workers = min(workers, len(missing))
    if workers < 2:
        yield from map(run_one, missing)
        return
    try:
        with closing(Crew(workers, partial(_begin_worker, run_one))) as crew:
            yield from crew.run(missing)
    except WorkerLostError:
        raise RunError("a process that ran a cell was killed: repeat the command, with fewer --workers.") from None


def _begin_worker(run_one: RunOne, number: int) -> RunOne:
    return run_one


def write_league(league: League, folder: Path) -> None:
    write_bytes(folder / "league.csv", to_csv(league.results).encode())
    write_bytes(folder / "league.html", render(league).encode())


def render(league: League) -> str:
    """One page with filters: the standings, a table per federation, and the commands of missing cells."""
    standings = standings_of(league.results)
    return fill_template(
        "page.html.j2",
        folder=HOME,
        star=STAR,
        words=[*league.words(), *standings.words()],
        overview=standings.overview(),
        families=standings.tabulate_families(),
        groups=[(group, *federation_table(group)) for group in standings.groups],
        names=sorted({*standings.families.values()}),
        data=script_safe(page_data(standings)),
        missing=league.missing,
    )


def page_data(standings: Standings) -> dict[str, Any]:
    """What the filters recompute mean ranks, wins and losses from."""
    return {
        "federations": [group.name for group in standings.groups],
        "rivals": [*standings.rivals],
        "methods": [
            {
                "name": s.name,
                "family": s.family,
                "ranks": standings.ranks[s.name],
                "regrets": [_find_regret(group, s.name) for group in standings.groups],
                "near": [s.name in group.near for group in standings.groups],
                "results": {
                    rival: [_result(group, s.name, rival) for group in standings.groups] for rival in standings.rivals
                },
            }
            for s in standings.table
        ],
        "local": LOCAL,
    }


def _find_regret(group: Group, name: str) -> float | None:
    return group.regret(name) if name in group.scored else None


def _result(group: Group, name: str, rival: str) -> int:
    """1 for a win, -1 for a loss, 0 if the interval contains zero."""
    lead = group.lead(name, rival)
    return 0 if lead is None else (lead.low > 0) - (lead.high < 0)


def _explain_absence(federation: Federation, data_dir: Path) -> str:
    try:
        prepare(federation.experiment("fedavg", 0), data_dir)
    except DataError as error:
        return str(error)
    return ""


def _read_cell(cell: LeagueCell, folder: Path) -> Result | None:
    """The cell's result in this folder; refuses one of another federation, or of code that computes something else."""
    path = cell.path(folder)
    if not path.exists():
        return None
    before = read_result(path)
    if before.federation_hash != hash_of(cell.federation):
        raise ConfigError(f"{cell.federation.source} has changed since {path} was run: choose another --out.")
    if before.numerics != cell.code.numerics:
        raise ConfigError(f"{path} is of another version of Headwise: choose another --out.")
    return before


def _read_others(
    folder: Path, federations: Mapping[str, Federation], known: Container[tuple[str, str, str, int]]
) -> tuple[list[Result], tuple[str, ...], tuple[str, ...]]:
    """The other results in the folder; those that hold no longer; and federations that are not among these.

    What has been run again since is only in the first.
    """
    files = {path: read_result(path) for path in sorted((folder / "cells").glob("*/*.json"))}
    strangers = {r.federation for r in files.values()} - {*federations}
    rest = {p: r for p, r in files.items() if r.federation in federations and place_of(r) not in known}
    now = {pair: _identify(federations[pair[0]], pair[1]) for pair in {(r.federation, r.method) for r in rest.values()}}
    current = [r for path, r in rest.items() if _identity_of(r, path) == now[r.federation, r.method]]
    places = {place_of(result) for result in current}
    older = {f"{r.method} on {r.federation}" for r in rest.values() if place_of(r) not in places}
    return current, tuple(sorted(older)), tuple(sorted(strangers))


Identity = tuple[str, str, int]
"""of a federation and a method's code: a result holds only for these"""


def _identify(federation: Federation, method: str) -> Identity | None:
    """As they are now; None if the method's file is gone, or can't be used any more."""
    cell = LeagueCell(federation, method, 0)
    try:
        return hash_of(federation), cell.name, cell.code.numerics
    except HeadwiseError:
        return None


def _identity_of(result: Result, path: Path) -> Identity:
    """As they were when the cell was run."""
    name = path.name.removesuffix(f"-{result.setting}-d{result.draw}.json")
    return result.federation_hash, name, result.numerics


def _describe(cell: LeagueCell, result: Result) -> str:
    what = f"{cell.federation.name}, {cell.method}, {cell.setting}, draw {cell.draw}"
    if result.mean_client is None:
        return f"{what}: {result.error}"
    return f"{what}: mean client {result.mean_client:.4g}, {result.cpu_seconds:.1f} CPU seconds"
