"""`headwise data check`: reads everything and reports errors and warnings with their locations."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, pluralize
from ...tasks.registry import kind_of
from ..partition.base import count_labels, group
from .description import Description
from .findings import DataFinding, Findings, Report, as_passed, name_passed
from .load import Loaded, load

CHUNK = 65_536


def check(d: Description) -> tuple[Loaded | None, list[DataFinding]]:
    """The data, or None if it can't be read, and all findings."""
    findings = Findings()
    report = name_passed(d, findings)
    try:
        loaded = load(d, findings)  # its message already names the argument
    except DataError as error:
        report(DataFinding("error", "unreadable", str(error)))
        return None, findings.all()
    _check_sizes(loaded, d, report)
    _check_classes(loaded, d, report)
    _check_features(loaded, d, report)
    _check_duplicates(loaded, d, report)
    return loaded, findings.all()


def _check_sizes(loaded: Loaded, d: Description, report: Report) -> None:
    """Clients with too few samples or no test samples."""
    raw = loaded.raw
    part = loaded.dataset.part
    counts = np.bincount(raw.owner, minlength=len(raw.owners))
    for c in np.flatnonzero(counts < d.few):
        text = f"it has {pluralize(int(counts[c]), 'sample')}, fewer than {d.few}."
        report(DataFinding("warning", "too few samples", text, d.place, client=raw.owners[c]))
    if part is not None:
        tested = np.bincount(raw.owner[part == 2], minlength=len(raw.owners))
        for c in np.flatnonzero(tested == 0):
            text = "it has no test samples, so its model is never evaluated."
            report(DataFinding("warning", "no test samples", text, d.place, client=raw.owners[c]))


def _check_classes(loaded: Loaded, d: Description, report: Report) -> None:
    """Classes that at most one client has, and clients with only one class."""
    if not kind_of(loaded.dataset.task).one_class:
        return
    raw = loaded.raw
    names = loaded.dataset.classes
    has = count_labels(loaded.dataset.y, group(raw.owner, len(raw.owners)), len(names)) > 0
    for k in np.flatnonzero(has.sum(0) < min(2, len(raw.owners))):  # one client, as at a site, can't be compared
        whose = [raw.owners[c] for c in np.flatnonzero(has[:, k])]
        text = f"only one client has the class {names[k]!r}." if whose else f"no client has the class {names[k]!r}."
        report(DataFinding("warning", "lonely class", text, d.place, client=whose[0] if whose else ""))
    for c in np.flatnonzero(has.sum(1) == 1):
        text = f"all its samples have the class {names[int(has[c].argmax())]!r}."
        report(DataFinding("warning", "one class only", text, d.place, client=raw.owners[c]))


def _check_features(loaded: Loaded, d: Description, report: Report) -> None:
    """Missing values and constant columns."""
    raw = loaded.raw
    recipe = loaded.dataset.recipe
    if recipe is None or raw.x.dtype.kind != "f":
        return
    columns = {at: c.name for c, at in recipe.list_places() if c.kind != "text"} if recipe.columns else {}
    for at, name in columns.items():
        what = "filled" if name in d.features.number else "in no category"
        _check_column(loaded, raw.x[:, at], name, what, d, report)
    if raw.form == "array":
        for at in range(0, len(raw), CHUNK):
            gaps = np.isnan(raw.x[at : at + CHUNK]).reshape(min(CHUNK, len(raw) - at), -1).any(1)
            for i in at + np.flatnonzero(gaps):
                text = "it contains NaN, which is replaced by the mean."
                report(raw.make_finding("warning", "missing value", int(i), text))


def _check_column(loaded: Loaded, x: NDArray[np.float64], name: str, what: str, d: Description, report: Report) -> None:
    raw = loaded.raw
    gone = np.isnan(x)
    if gone.all():
        report(DataFinding("error", "empty column", "every value is missing.", d.place, column=name))
        return
    if gone.any():
        text = f"{int(gone.sum()):,} of {len(x):,} values are missing, here the first: they are {what}."
        report(raw.make_finding("warning", "missing value", int(gone.argmax()), text, name))
    if np.ptp(x[~gone]) == 0:
        report(DataFinding("warning", "constant column", "all values are the same.", d.place, column=name))
        return
    for c, indices in enumerate(group(raw.owner, len(raw.owners))):
        own = x[indices][~gone[indices]]
        if len(indices) >= d.few and (not len(own) or np.ptp(own) == 0):
            text = "this client has no values." if not len(own) else "all values of this client are the same."
            report(DataFinding("warning", "constant at a client", text, d.place, column=name, client=raw.owners[c]))


def _check_duplicates(loaded: Loaded, d: Description, report: Report) -> None:
    """Samples that occur twice: at two clients, or in training and test."""
    raw = loaded.raw
    part = loaded.dataset.part
    y = loaded.dataset.y
    keys = np.concatenate(
        [_hash_samples(raw.x[at : at + CHUNK], y[at : at + CHUNK]) for at in range(0, len(raw), CHUNK)]
    )
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for a, b in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        where = f"the same as {replace(as_passed(d, raw.make_finding('warning', '', a, '')), client='').where}"
        if raw.owner[a] != raw.owner[b]:
            text = f"{where}, of client {raw.owners[raw.owner[a]]!r}."
            report(raw.make_finding("warning", "duplicate over clients", b, text))
        elif part is not None and part[a] != part[b]:
            report(
                raw.make_finding("warning", "duplicate in training and test", b, f"{where}, which is in another part.")
            )
        elif part is None:
            text = f"{where}: one may end up in training and the other in test."
            report(raw.make_finding("warning", "duplicate of a client", b, text))


def _hash_samples(x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.uint64]:
    """A 64-bit hash of each sample with its target."""
    rows = zip(np.ascontiguousarray(x), np.ascontiguousarray(y), strict=True)
    digests = b"".join(hashlib.blake2b(a.tobytes() + b.tobytes(), digest_size=8).digest() for a, b in rows)
    return np.frombuffer(digests, np.uint64)
