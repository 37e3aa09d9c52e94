"""What each client's data have told, kept by the site itself: over all runs, servers and restarts.

One file for each client, beside site.toml and outside any run's folder. It is charged and flushed to disk before a
client even trains: a crash can waste what was charged, and never let an answer leave for nothing. A server names runs
and experiments as it likes; whatever they are called, they are added up here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...disk.files import failing_clearly, write_json
from ...disk.jsontext import to_json
from ...engine.client.jobs import Job
from ...engine.mechanism import Releases
from ...engine.plan import Plan
from ...errors import ConfigError, RunError
from ...privacy.accountant import composed
from ...settings.fields import Natural, build
from ..states import SiteStates, runs_in
from .site_file import SiteSettings


@dataclass(frozen=True)
class LedgerEntry:
    """A run that a client has been asked for."""

    run: str
    experiment: str
    """its hash: one run has one experiment"""
    answers: Natural = 0
    """orders to train that were charged"""
    last: Natural = 0
    """the newest round that changed the client's state"""
    unit: str | None = None
    """whose data are protected; none: nobody's"""
    noise: float = 0.0
    rate: float = 0.0
    steps: int = 0
    """what one answer costs"""

    @property
    def spent(self) -> Releases:
        """All of its answers."""
        return Releases(self.noise, self.rate, self.steps).times(self.answers)


@dataclass(frozen=True)
class Book:
    """All that a client's data have told."""

    client: Natural
    runs: tuple[LedgerEntry, ...] = ()

    def entry(self, run: str) -> LedgerEntry | None:
        """What there is about this run."""
        return next((e for e in self.runs if e.run == run), None)

    def with_entry(self, entry: LedgerEntry) -> Book:
        """The same with this one new, or in place of the one before."""
        return replace(self, runs=(*(e for e in self.runs if e.run != entry.run), entry))

    def epsilon(self, delta: float, more: Releases | None = None) -> float:
        """Of all answers that were protected, and of what is to come."""
        steps: dict[tuple[float, float], int] = {}
        for noise, rate, n in (*(e.spent for e in self.runs if e.unit), *([more] if more else [])):
            steps[noise, rate] = steps.get((noise, rate), 0) + n
        return composed(tuple(Releases(*key, n) for key, n in sorted(steps.items())), delta)

    @property
    def bare(self) -> int:
        """Answers without any protection."""
        return sum(e.answers for e in self.runs if e.unit is None)


@dataclass(frozen=True)
class Ledger:
    """The books of one site's clients."""

    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def book(self, client: int) -> Book:
        """A client's book; an empty one if it was never asked for anything, an error if it can't be trusted."""
        path = self._path(client)
        try:
            found = json.loads(path.read_bytes())
            book = build(Book, found["book"])
            if found["sha256"] != _digest(book) or book.client != client:
                raise ValueError("it does not fit its checksum")
        except FileNotFoundError:
            return Book(client)
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}.") from error
        except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
            raise RunError(
                f"{path} is damaged ({error}): what client {client} has spent is not known, and nothing leaves."
            ) from error
        return book

    def charge(self, plan: Plan, experiment: str, kept: SiteStates, jobs: Sequence[Job]) -> None:
        """Take down what these jobs will tell, all of them or none; what is not offered, or not left, is refused."""
        with self._locked():
            before = [self.book(job.client) for job in jobs]
            after = [self._charged(plan, experiment, kept, *each) for each in zip(before, jobs, strict=True)]
            for book in after:
                if book not in before:
                    write_json(self._path(book.client), {"book": asdict(book), "sha256": _digest(book)}, private=True)

    def check_left(self, plan: Plan, experiment: str) -> None:
        """Refuse a run that could not be ended, or not even gone on with."""
        if self.site.allow.epsilon is None:
            return
        for own in self.site.clients:
            book = self.book(own.id)
            begun = any(e.experiment == experiment and e.last < plan.experiment.rounds for e in book.runs)
            self._check_left(plan, book, 1 if begun else plan.experiment.rounds)

    def _charged(self, plan: Plan, experiment: str, kept: SiteStates, book: Book, job: Job) -> Book:
        run = kept.folder.name
        fresh = LedgerEntry(run, experiment, 0, 0, *self._cost(plan, job.client))
        entry = book.entry(run) or fresh
        if replace(entry, answers=0, last=0) != fresh:
            raise RunError(
                f"{self.site.name} knows {run} as another experiment, or on other data of client {job.client}."
            )
        if self.site.allow.epsilon is not None:
            self._check_known(book, kept.folder.parent)
            if job.kind == "fit" and job.t <= entry.last:
                raise RunError(
                    f"{self.site.name} has answered round {job.t} for client {job.client} already, or a later one."
                )
            if job.kind == "fit":
                self._check_left(plan, book, 1 if entry.answers else plan.experiment.rounds)
        answers = entry.answers + (job.kind == "fit")
        last = max(entry.last, job.t) if job.kind in ("fit", "idle") else entry.last
        return book.with_entry(replace(entry, answers=answers, last=last))

    def _cost(self, plan: Plan, client: int) -> tuple[Any, ...]:
        if not plan.privacy.protects or plan.privacy.source != "system":
            return ()
        return plan.privacy.unit, *plan.privacy.cost(plan, client)

    def _check_left(self, plan: Plan, book: Book, rounds: int) -> None:
        allow, more = self.site.allow, plan.privacy.cost(plan, book.client).times(rounds)
        found, total = book.epsilon(allow.delta, more), allow.total or 0.0
        if not found <= total:
            raise RunError(
                f"{self.site.name} lets client {book.client} spend an epsilon of {total:g} in all: with the "
                f"{book.epsilon(allow.delta):.3g} that is spent, rounds left to answer ({rounds}) come to {found:.3g}."
            )

    def _check_known(self, book: Book, states: Path) -> None:
        """Whoever has a state here has a line in the book: else that is gone, or an older one than the states are."""
        for run in runs_in(states):
            kept = SiteStates(states, run)
            if book.client not in kept.clients():
                continue
            entry = book.entry(run)
            if entry is None or any(v.t > entry.last for v in kept.versions(book.client)):
                raise RunError(
                    f"{self._path(book.client)} is missing or too old: it does not know all that client {book.client} "
                    f"did in {run}. Put the right one back, or let headwise site erase remove that run if it shall not "
                    f"count."
                )

    def _path(self, client: int) -> Path:
        return self.home / f"ledger-{client}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two orders at the same time are charged one after the other."""
        path = self.home / "ledger.lock"
        with failing_clearly(path):
            file = path.open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _digest(book: Book) -> str:
    return hashlib.sha256(to_json(asdict(book), sort_keys=True).encode()).hexdigest()
