"""The site's own account of the privacy that each client has spent, over all runs, servers and restarts.

One file per client, next to site.toml and outside the run folders. A charge is on disk before the client trains: a
crash can waste budget but never leak an uncharged answer. It adds up all runs, whatever the server calls them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...disk.files import explain_write_errors, read_json, seal, write_json
from ...engine.client.jobs import Job
from ...engine.mechanism import Releases
from ...engine.plan import Plan
from ...errors import ConfigError, RunError
from ...privacy.accountant import compose
from ...settings.fields import Natural, build
from ..states import SiteStates, runs_in
from .site_file import SiteSettings, read_site


@dataclass(frozen=True)
class LedgerEntry:
    """What a client has spent in one run."""

    run: str
    experiment: str
    """its hash; a run never changes its experiment"""
    answers: Natural = 0
    """training orders charged"""
    last: Natural = 0
    """the latest round that changed the client's state"""
    unit: str | None = None
    """what is protected, client or example; None if nothing is"""
    noise: float = 0.0
    rate: float = 0.0
    steps: int = 0
    """noise, rate and steps are the cost of one answer"""

    @property
    def spent(self) -> Releases:
        return Releases(self.noise, self.rate, self.steps).times(self.answers)


@dataclass(frozen=True)
class Book:
    client: Natural
    runs: tuple[LedgerEntry, ...] = ()

    def entry(self, run: str) -> LedgerEntry | None:
        return next((e for e in self.runs if e.run == run), None)

    def with_entry(self, entry: LedgerEntry) -> Book:
        """A copy of the book in which this entry is added, or replaces that of the same run."""
        return replace(self, runs=(*(e for e in self.runs if e.run != entry.run), entry))

    def epsilon(self, delta: float, more: Releases | None = None) -> float:
        """Epsilon of all protected answers so far, and of those to come (`more`)."""
        steps: dict[tuple[float, float], int] = {}
        for noise, rate, n in (*(e.spent for e in self.runs if e.unit), *([more] if more else [])):
            steps[noise, rate] = steps.get((noise, rate), 0) + n
        return compose(tuple(Releases(*key, n) for key, n in sorted(steps.items())), delta)

    @property
    def bare(self) -> int:
        """Answers without protection."""
        return sum(e.answers for e in self.runs if e.unit is None)


class PrivacySpent(NamedTuple):
    """The privacy budget of one client over all runs."""

    client: int
    epsilon: float
    """of all answers under differential privacy, composed"""
    delta: float
    total: float | None
    """the site's limit, if it sets one"""
    left: float | None
    unit: str | None
    """what epsilon protects: the client, or a single example as soon as one run protected only those"""
    unprotected: int
    """answers without differential privacy"""

    def line(self) -> str:
        limit = "no limit" if self.left is None else f"{self.left:.3g} of {self.total:g} left"
        bare = f"; {self.unprotected} answers without privacy" if self.unprotected else ""
        unit = f" (of {'an example' if self.unit == 'example' else 'the client'})" if self.unit else ""
        return f"client {self.client}  spent epsilon {self.epsilon:.3g}{unit} at delta {self.delta:g}, {limit}{bare}"


@dataclass(frozen=True)
class Ledger:
    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def book(self, client: int) -> Book:
        """A client's book, empty before its first order; a `RunError` if it can't be trusted."""
        path = self._path(client)
        unknown = f"what client {client} has spent is unknown, so nothing may leave."
        try:
            values = read_json(path)
        except RunError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return Book(client)
            raise RunError(f"{str(error).rstrip('.')}: {unknown}") from error
        try:
            values.pop("checksum")
            book = build(Book, values)
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise RunError(f"{path} is damaged ({error}): {unknown}") from error
        if book.client != client:
            raise RunError(f"{path} is damaged (it belongs to client {book.client}): {unknown}")
        return book

    def charge(self, plan: Plan, experiment: str, kept: SiteStates, jobs: Sequence[Job]) -> None:
        """Charge all of these jobs or none; refuse those that the site does not allow or has no budget for."""
        with self._hold_lock():
            before = [self.book(job.client) for job in jobs]
            after = [self._add_charge(plan, experiment, kept, *each) for each in zip(before, jobs, strict=True)]
            for book in after:
                if book not in before:
                    write_json(self._path(book.client), seal(asdict(book)), private=True)

    def check_left(self, plan: Plan, experiment: str) -> None:
        """Refuse a run whose remaining budget does not last to its end, or for the next round once it has begun."""
        if self.site.allow.epsilon is None:
            return
        for own in self.site.clients:
            book = self.book(own.id)
            begun = any(e.experiment == experiment and 0 < e.last < plan.experiment.rounds for e in book.runs)
            self._check_left(plan, book, 1 if begun else plan.experiment.rounds)

    def list_spent(self) -> list[PrivacySpent]:
        """What each client has spent, in the order of their numbers."""
        allow = self.site.allow
        rows: list[PrivacySpent] = []
        for client in sorted(own.id for own in self.site.clients):
            book = self.book(client)
            epsilon = book.epsilon(allow.delta)
            left = None if allow.total is None else max(0.0, allow.total - epsilon)
            unit = max((e.unit for e in book.runs if e.unit), default=None)  # "example" sorts after "client"
            rows.append(PrivacySpent(client, epsilon, allow.delta, allow.total, left, unit, book.bare))
        return rows

    def _add_charge(self, plan: Plan, experiment: str, kept: SiteStates, book: Book, job: Job) -> Book:
        run = kept.folder.name
        cost: tuple[Any, ...] = ()
        if plan.privacy.protects and plan.privacy.source == "system":
            cost = plan.privacy.unit, *plan.privacy.cost(plan, job.client)
        fresh = LedgerEntry(run, experiment, 0, 0, *cost)
        entry = book.entry(run) or fresh
        if replace(entry, answers=0, last=0) != fresh:
            raise RunError(
                f"{self.site.name} knows {run} with another experiment or other data of client {job.client}."
            )
        if self.site.allow.epsilon is not None:
            self._check_known(book, kept.folder.parent)
            if job.kind == "fit" and job.t <= entry.last:
                raise RunError(f"{self.site.name} has already answered round {job.t} or later for client {job.client}.")
            if job.kind == "fit":
                self._check_left(plan, book, 1 if entry.answers else plan.experiment.rounds)
        answers = entry.answers + (job.kind == "fit")
        last = max(entry.last, job.t) if job.kind in ("fit", "idle") else entry.last
        return book.with_entry(replace(entry, answers=answers, last=last))

    def _check_left(self, plan: Plan, book: Book, rounds: int) -> None:
        allow = self.site.allow
        total = allow.total or 0.0
        after = book.epsilon(allow.delta, plan.privacy.cost(plan, book.client).times(rounds))
        if not after <= total:
            spent = book.epsilon(allow.delta)
            raise RunError(
                f"{self.site.name} limits client {book.client} to a total epsilon of {total:g}: {spent:.3g} is spent, "
                f"and the rounds ahead ({rounds}) would bring it to {after:.3g}."
            )

    def _check_known(self, book: Book, states: Path) -> None:
        """Refuse if the book lacks a run or round that the states show: it was lost, or restored from an old copy."""
        for run in runs_in(states):
            kept = SiteStates(states, run)
            if book.client not in kept.clients():
                continue
            entry = book.entry(run)
            if entry is None or any(v.t > entry.last for v in kept.versions(book.client)):
                raise RunError(
                    f"{self._path(book.client)} is missing or too old: it lacks rounds of client {book.client} in "
                    f"{run}. Restore the right file, or run headwise site erase if that run should not count."
                )

    def _path(self, client: int) -> Path:
        return self.home / f"ledger-{client}.json"

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Concurrent orders are charged one at a time."""
        path = self.home / "ledger.lock"
        with explain_write_errors(path):
            file = path.open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def privacy_spent(path: Path) -> list[PrivacySpent]:
    """What each client of the site with this site.toml has spent."""
    return Ledger(read_site(path), path.absolute().parent).list_spent()
