"""An offer: a folder that lets a site join a deployment after the last round.

It holds the message that a client gets when it is first drawn, and the global model, if there is one: no samples, no
client's state, and no code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..contract.method import record_types
from ..disk.jsontext import to_json
from ..engine.joining import Offer, offer
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..exports.card import CARD, DOWN, WHOLE, read_any_card, read_file, write_folder
from ..exports.run_models import Models
from ..params import Params
from ..records import Packed, Record, RecordError, decode, encode, fields_of, from_bytes, to_bytes
from ..runs.files import judge_of
from ..runs.manifest import name_at_sites
from ..settings.experiment import experiment_from
from ..settings.foreign import read_foreign
from .facts import write_for_sites

_SHAPE = judge_of({
    "experiment": dict,
    "client": int,
    "round": int,
    "run": str,
    "checksum": str,
    "files": {str: {"bytes": int, "sha256": str}},
})  # fmt: skip


class Handed(NamedTuple):
    """An offer as it was handed over; `download` needs the method's own type."""

    folder: Path
    fingerprint: str
    """hash of the card, which has the hashes of all files: the same fingerprint means the same offer"""
    experiment: str
    """as sites receive it, in JSON"""
    client: int
    """the newcomer's number: the first free one"""
    t: int
    """the round after which it was written"""
    run: str
    down: bytes
    whole: bytes | None

    def offer(self, kind: type[Record]) -> Offer:
        """The offer, with its download as a record of this type."""
        try:
            whole = None if self.whole is None else Params(from_bytes(self.whole).tensors)
            return Offer(decode(kind, self.down), whole)
        except RecordError as error:
            raise RunError(f"{self.folder} is damaged: {error}.") from error


def write_offer(models: Models, folder: Path) -> str:
    """Write the offer of a run whose clients are at sites; return its fingerprint."""
    if not models.deployed:
        raise RunError(f"{models.run.path} has its clients here: use headwise adapt, which needs no offer.")
    progress = models.checkpoint("last").progress
    plan = _add_newcomer(models.plan)
    client = len(models.plan.data)
    given = offer(plan, progress.server, client, progress.t)
    fields = list(fields_of(record_types(type(plan.method)).down))
    files = {DOWN: encode(given.down)}
    if given.whole is not None:
        files[WHOLE] = to_bytes(Packed(dict(given.whole), {}))
    experiment = json.loads(write_for_sites(experiment_from(models.run.manifest["experiment"])))
    card = {"kind": "offer", "experiment": experiment, "run": name_at_sites(models.run.path)}
    write_folder(folder, {**card, "client": client, "round": progress.t, "download": fields}, files)
    return read_offer(folder).fingerprint


def read_offer(folder: Path, expected: str = "", admit: Callable[[int], None] = lambda size: None) -> Handed:
    """The offer, whose fingerprint must begin with `expected`; `admit` may refuse its size before files are read."""
    card = read_any_card(folder, _SHAPE)
    if not card["checksum"].startswith(expected.lower()):
        raise ConfigError(f"--fingerprint is {expected!r}, but that of {folder} is {card['checksum']}.")
    text = to_json(card["experiment"])
    try:
        clients = read_foreign(text).clients
    except ConfigError as error:
        raise RunError(f"{folder / CARD} has an experiment that can't be read: {error}") from error
    if card["client"] != clients or card["round"] < 0:
        raise RunError(f"{folder / CARD} is damaged: client is {card['client']}, but must be {clients}.")
    admit(len(text) + sum(card["files"][name]["bytes"] for name in (DOWN, WHOLE) if name in card["files"]))
    whole = read_file(folder, card, WHOLE) if WHOLE in card["files"] else None
    down = read_file(folder, card, DOWN)
    return Handed(folder, card["checksum"], text, card["client"], card["round"], card["run"], down, whole)


def _add_newcomer(plan: Plan) -> Plan:
    """The plan with the newcomer, about which the server knows nothing, as its last client.

    It counts as a client of average size with all classes, as under privacy, where nobody's classes are known.
    """
    data = plan.data
    sizes = [n for c in range(len(data)) if (n := data.sizes(c)[0])]
    n = round(sum(sizes) / len(sizes)) if sizes else 0
    labels = {**(data.reported_labels or {}), len(data): tuple(range(data.task.classes))}
    ends = np.vstack([data.ends, np.full(3, (data.ends[-1, 2] if len(data) else 0) + n)])
    return replace(plan, data=replace(data, ends=ends, reported_labels=labels, absent=data.absent | {len(data)}))
