"""Which clients take part in a round: drawn from the seed, or as `sampling.trace` lists them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ConfigError, nearest, pluralize
from ..seeds import seed_of
from ..settings.experiment import Experiment
from ..settings.options import Sampling

if TYPE_CHECKING:
    from .plan import Plan


Trace = tuple[tuple[int, ...], ...]
"""the clients of each round, ascending"""


def read_trace(path: Path, clients: int, names: Sequence[str], rounds: int) -> Trace:
    """Which clients take part in rounds 1, 2, ...; at least as many as the run has."""
    setting = f"sampling.trace is {str(path)!r}"
    rows = _rows(path, setting)
    if len(rows) < rounds:
        raise ConfigError(f"{setting}, which has {pluralize(len(rows), 'round')}, but rounds is {rounds}.")
    numbers = {name: c for c, name in enumerate(names)}
    return tuple(_clients(row, clients, numbers, f"{setting}, whose round {t}") for t, row in enumerate(rows, 1))


def _rows(path: Path, setting: str) -> list[list[Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{setting}, which can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}, which is not text in UTF-8.") from error
    if path.suffix != ".json":
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        try:
            return [next(csv.reader([line], skipinitialspace=True), []) for line in lines]
        except csv.Error as error:
            raise ConfigError(f"{setting}, which is not valid CSV: {error}.") from error
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{setting}, which is not valid JSON: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ConfigError(f"{setting}, which must hold a list with one list of clients per round.")
    return rows


def _clients(row: Sequence[Any], clients: int, numbers: dict[str, int], setting: str) -> tuple[int, ...]:
    """The numbers of a round's clients; a name comes first, even if it looks like a number."""
    present: list[int] = []
    for who in row:
        cell = who.strip() if isinstance(who, str) else who
        c = numbers.get(cell) if isinstance(cell, str) else cell
        if c is None and isinstance(cell, str) and cell.isascii() and cell.isdigit() and len(cell) < 10:
            c = int(cell)
        if not isinstance(c, int) or isinstance(c, bool) or not 0 <= c < clients:
            few = 0 < len(numbers) <= 1000
            known = nearest(str(who), numbers, "they are") if few else f"they are 0 to {clients - 1}."
            raise ConfigError(f"{setting} names the client {who!r}, which does not exist: {known}")
        present.append(c)
    if len(set(present)) < len(present):
        twice = next(c for c in present if present.count(c) > 1)
        raise ConfigError(f"{setting} names client {twice} twice.")
    return tuple(sorted(present))


def sample(sampling: Sampling, clients: int, seed: int, t: int) -> list[int]:
    """The clients of round t, ascending; drawn without replacement, independently of all other rounds."""
    if not clients:
        return []
    rng = torch.Generator().manual_seed(seed_of(seed, "sample", t))
    high = share_of(sampling.ratio, clients)
    low = high if sampling.ratio_low is None else share_of(sampling.ratio_low, clients)
    m = int(torch.randint(low, high + 1, (), generator=rng)) if low < high else high
    return sorted(torch.randperm(clients, generator=rng)[:m].tolist())


def sample_measured(share: float, clients: Sequence[int], seed: int) -> Sequence[int]:
    """Those of these clients that are measured in every round, ascending."""
    if share == 1:
        return clients
    rng = torch.Generator().manual_seed(seed_of(seed, "measured"))
    drawn = torch.randperm(len(clients), generator=rng)[: share_of(share, len(clients))]
    return sorted(clients[k] for k in drawn.tolist())


def newcomers(experiment: Experiment, clients: int) -> list[int]:
    """The clients that never train, ascending: at least one if the share is not 0; the same for every method."""
    share = experiment.evaluate.new_clients
    rng = torch.Generator().manual_seed(seed_of(experiment.seed, "new clients"))
    return sorted(torch.randperm(clients, generator=rng)[: share_of(share, clients)].tolist()) if share else []


def participants(plan: Plan, t: int) -> list[int]:
    """The clients that train in round t: sampled from eligible ones; absent ones are dropped afterwards."""
    outside = set(newcomers(plan.experiment, len(plan.data)))
    eligible = plan.trace[t - 1] if plan.trace else range(len(plan.data))
    pool = [c for c in eligible if c not in outside] if outside else eligible
    at = plan.at(t)
    rounds = plan.at(plan.experiment.rounds)
    everyone = plan.method.draws_everyone(at, rounds)
    drawn = range(len(pool)) if everyone else sample(plan.experiment.sampling, len(pool), plan.experiment.seed, at)
    return [pool[i] for i in drawn if pool[i] not in plan.data.absent]


def share_of(ratio: float, clients: int) -> int:
    """M = max(floor(ratio N), 1); the tiny addend keeps 0.29 * 100 from becoming 28."""
    return max(math.floor(ratio * clients + 1e-9), 1)
